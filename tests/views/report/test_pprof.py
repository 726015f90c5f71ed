"""GPU time by stack as a profile: read back by Google's own tool, which Go has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from drumline.views.report.pprof import pprof

GO = shutil.which("go") or next(iter(map(str, Path("/usr/local/go/bin").glob("go"))), None)
ROWS = [
    {"place": "main (train.py:9);attend (model.py:31)", "gpu_s": 1.5},
    {"place": "main (train.py:9);project (model.py:40)", "gpu_s": 0.25},
    {"place": "(no launch recorded)", "gpu_s": 0.25},
    {"place": "main (train.py:300);Größe (ä.py:1)", "gpu_s": 0.0},
]


def test_the_same_stacks_give_the_same_bytes():
    assert pprof(ROWS) == pprof(list(ROWS))
    assert pprof([]) != pprof(ROWS)


@pytest.mark.long
@pytest.mark.skipif(GO is None, reason="no Go; on Debian: apt-get install golang-go")
def test_pprof_reads_times_functions_files_and_lines(tmp_path):
    path = tmp_path / "gpu.pb.gz"
    path.write_bytes(pprof(ROWS))
    done = subprocess.run([GO, "tool", "pprof", "-raw", str(path)], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "gpu/nanoseconds" in lines
    assert "1500000000: 1 2" in lines  # the leaf first
    assert any("attend model.py:31" in line for line in lines)
    assert any("Größe ä.py:1" in line for line in lines)
    assert any("main train.py:300" in line for line in lines)
