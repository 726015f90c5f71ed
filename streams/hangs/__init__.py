"""Jobs that stand still: which rank, in which operation, and why."""
