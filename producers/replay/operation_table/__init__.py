"""Tables with one row per operation of a training job, as other tools record them, become batches of drumline."""
