"""Reading what Nsight Systems exports as SQLite: kernels, copies, NVTX ranges and NCCL's payloads of each process."""
