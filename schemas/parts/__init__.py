"""Records that join the batches of several processes of a host."""
