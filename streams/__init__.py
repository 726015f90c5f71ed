"""Faust workers: pure window algebra and straggler logic, and the agents that carry them."""
