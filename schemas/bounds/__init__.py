"""Limits of the fields of all topics, and the check of a batch against them."""
