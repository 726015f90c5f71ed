"""Benchmarks and their baselines, for `drumline bench` only.

A baseline is the simplest design that solves the same task. The programs cannot import this package.
"""
