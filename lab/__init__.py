"""The demo, benchmarks, chaos runs and scores on recordings: programs that try and measure drumline."""
