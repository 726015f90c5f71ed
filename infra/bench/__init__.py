"""Benchmarks and the baselines beside them, for `drumline bench` only. Baselines are what a reader would build first;
production code cannot import this package (import-linter, tests/test_imports.py)."""
