"""The agent as a command in a process of its own."""

import os

from support.drumline_program import DrumlineProgram


def agent(root, *arguments, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    more = {f"DRUMLINE_{name}": value for name, value in environment.items()}
    nowhere = {"DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:1", "DRUMLINE_METRICS_PORT": "0"}
    return DrumlineProgram(("agent", "--spool", str(root), *arguments), kept | nowhere | more)


def errors_of(program):
    """Wait for its end; what it wrote to stderr."""
    return program.communicate()[1].decode()
