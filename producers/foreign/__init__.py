"""Traces that other tools record become the activity that drumline derives its rows from."""
