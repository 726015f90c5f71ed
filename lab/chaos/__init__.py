"""Chaos runs, for `drumline chaos` only: programs are killed under load, and stored rows are compared with published
ones.

The programs cannot import this package.
"""
