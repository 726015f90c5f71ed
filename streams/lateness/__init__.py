"""The lateness stage: wait and lateness of each rank in the collectives of a communicator."""
