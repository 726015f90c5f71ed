"""The agent as a command in a process of its own."""

import os
import subprocess
import sys


def agent(root, *arguments, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    more = {f"DRUMLINE_{name}": value for name, value in environment.items()}
    nowhere = {"DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:1", "DRUMLINE_METRICS_PORT": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "drumline.cli.app", "agent", "--spool", str(root), *arguments],
        env=kept | nowhere | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
