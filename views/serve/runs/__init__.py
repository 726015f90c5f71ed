"""Pages of jobs and their runs, and the file of a step."""
