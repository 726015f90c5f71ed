"""The windows stage: kernels and copies of each process in rolling windows."""
