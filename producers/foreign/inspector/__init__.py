"""Reading the logs of the Inspector, a profiler plugin of NCCL and RCCL: an operation of one process a line."""
