"""Python stacks of processes that a verdict names, sampled by py-spy without stopping them (gpu.stack.v1)."""
