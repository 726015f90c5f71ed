"""The web page of `drumline serve`: fleet, jobs, ranks, bad steps, causes and the named questions; it only reads."""
