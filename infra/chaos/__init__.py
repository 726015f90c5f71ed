"""Kill campaigns, for `drumline chaos` only: programs die under load, and what is stored afterwards is compared with
what was published. Production code cannot import this package (import-linter, tests/test_imports.py)."""
