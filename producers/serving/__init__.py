"""Rows of iterations and requests, in a process of drumline beside each process of an inference engine."""
