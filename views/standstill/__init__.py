"""Standstills of jobs that drumline did not record, explained from dumps: who is waited for, in what, and where."""
