"""Dumps of jobs that hang, as PyTorch's Flight Recorder and NCCL's RAS write them."""
