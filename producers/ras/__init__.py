"""Reads what NCCL's RAS knows of a job of this host that stands still."""
