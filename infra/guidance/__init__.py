"""Guidance for people: what each cause of a verdict means, how to check it, and what to do."""
