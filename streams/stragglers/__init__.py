"""The straggler stage: verdicts on windows of steps of a job, and the alarms that follow from them."""
