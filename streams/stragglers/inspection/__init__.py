"""Inspections of suspect ranks: the stacks of one and of its peer, and what they show (gpu.stack.v1)."""
