"""The analysis of one window of steps: functions without state, from arrays to verdicts."""
