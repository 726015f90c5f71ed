"""Kineto's JSON, which PyTorch's profiler exports, one file a rank."""
