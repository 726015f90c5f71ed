"""An answer in a pipe is plain text, and needs no library that draws tables."""

import subprocess
import sys

SHOW = """
import sys
from drumline.views.sqlshell.output import _show
_show(b"rank\\tns\\n0\\t12\\n")
print([name for name in sys.modules if name.partition(".")[0] == "rich"])
"""


def test_a_pipe_gets_lines_without_loading_rich():
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert done.stdout == "rank\tns\n0\t12\n[]\n"
