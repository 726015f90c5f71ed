"""Adapters of inference engines, inside their processes: they tell a process of drumline of iterations and requests."""
