"""The time that a test waits for a state at most: one limit for all, which a loaded machine of two cores keeps."""

#: Tests wait for states and progress, and measure no time. pytest ends one after 600 s (pyproject.toml), so that two
#: waits that fail are named first; s.
WAIT_S = 240.0
