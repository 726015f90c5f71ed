"""The messages of alerts, written by Go's own text/template as in Grafana; without Go they are not run."""

import shutil
import subprocess
from pathlib import Path

import pytest

from drumline.infra.grafana.provisioning.contacts import TEMPLATE

GO = shutil.which("go") or next(iter(map(str, Path("/usr/local/go/bin").glob("go"))), None)
PROGRAM = Path(__file__).parents[2] / "data" / "messages.go.txt"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(GO is None, reason="no Go; on Debian: apt-get install golang-go"),
]
RANK_2, RANK_3 = "rank 2 is late", "rank 3 is late"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """Return name of the case -> (title, lines) of PROGRAM's cases."""
    folder = tmp_path_factory.mktemp("messages")
    shutil.copy(PROGRAM, folder / "main.go")
    (folder / "drumline.tmpl").write_text(TEMPLATE)
    done = subprocess.run(
        [GO, "run", "main.go", "drumline.tmpl"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    parts = [part.split("\n", 2) for part in done.stdout.split("=====") if part]
    return {name: (title, lines.splitlines()) for name, title, lines in parts}


@pytest.mark.parametrize(
    ("case", "title", "sentences"),
    [
        ("warning", "[FIRING] Straggler demo (1)", [RANK_2]),
        ("critical", "[FIRING] Straggler demo (1)", [RANK_2]),
        ("critical and another rank at warning", "[FIRING] Straggler demo (2)", [RANK_2, RANK_3]),
        ("fell to warning", "[FIRING] Straggler demo (1)", [RANK_2]),
        ("over", "[RESOLVED] Straggler demo (1)", [f"Over: {RANK_2}"]),
        ("over where only critical ones are sent", "[RESOLVED] Straggler demo (1)", [f"Over: {RANK_2}"]),
        ("one is over, another is critical", "[FIRING] Straggler demo (2)", [f"Over: {RANK_2}", RANK_3]),
        ("two of another rule", "[FIRING] XID error demo (2)", ["XID 79", "XID 119"]),
    ],
)
def test_a_rank_is_in_a_message_once_and_over_only_when_nothing_of_it_fires(messages, case, title, sentences):
    written, lines = messages[case]
    assert written == title
    assert [line for line in lines if line.startswith(("Over:", "rank", "XID"))] == sentences
    assert lines.count("Do: act") == len(sentences)


def test_a_message_names_the_owner_of_the_job(messages):
    assert "If you cannot: somebody (team vision, user ada). More: page" in messages["of a team"][1]
    assert "If you cannot: somebody. More: page" in messages["warning"][1]
