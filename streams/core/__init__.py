"""The parts that all stages share: the stage contract, state records, thresholds, medians."""
