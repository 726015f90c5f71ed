"""The guidance: every cause and detail that the stages name has an entry, and every entry says something."""

import ast
import json
from pathlib import Path

import pytest

from drumline.infra.grafana.alerts import causes as alert_causes
from drumline.infra.guidance import causes
from drumline.infra.guidance.causes import CAUSES, NAMES, WITHOUT_WINDOWS, guidance
from drumline.infra.guidance.hangs import hang_guidance
from drumline.streams.stragglers.analysis import cause

ROOT = Path(__file__).parents[3]


def named_causes():
    """(cause, detail) of all calls Cause(...) with literal or constant arguments in the analysis."""
    for path in (ROOT / "streams/stragglers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Cause":
                texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
                if isinstance(node.args[0], ast.Name) and node.args[0].id.isupper():
                    texts.insert(0, getattr(causes, node.args[0].id))
                if texts and texts[0] not in ("", "ok"):
                    yield texts[0], texts[1] if len(texts) > 1 else ""


def test_every_cause_that_a_verdict_names_has_an_entry():
    named = set(named_causes())
    assert {"slow_link", "changed_job", "slow_compute", "unknown", "insufficient_data"} <= {c for c, _ in named}
    assert named - NAMES == set()


def test_a_cause_that_has_no_entry_cannot_be_made():
    assert cause.Cause("slow_copy", "pageable")
    with pytest.raises(ValueError, match="host_stall pageable"):
        cause.Cause("host_stall", "pageable")


@pytest.mark.parametrize("entry", [*CAUSES, *WITHOUT_WINDOWS], ids=lambda entry: entry.name)
def test_an_entry_can_be_read_alone(entry):
    assert entry.meaning[0].islower()
    assert entry.meaning[-1] not in ".!"
    for text in (entry.check, entry.act):
        assert text[0].isupper()
        assert text[-1] in ".?"


def test_every_reason_of_a_hang_has_an_entry_that_can_be_read_alone():
    schema = json.loads((ROOT / "schemas/avro/gpu.hang.v1.avsc").read_text())
    [reasons] = [f["doc"] for f in schema["fields"] if f["name"] == "reasons"]
    for reason in reasons.split(";")[0].split(", "):
        entry = hang_guidance(reason)
        assert entry, reason
        assert entry.meaning[0].islower()
        assert entry.check
        assert entry.act


def test_names_are_unique_and_an_unknown_detail_has_its_causes_entry():
    assert len({(e.cause, e.detail) for e in CAUSES}) == len(CAUSES)
    assert guidance("slow_copy", "of a later release").detail == ""
    assert guidance("ok") is None


def test_a_message_has_one_text_for_each_entry():
    text = alert_causes.text("CAUSE", alert_causes.ACTS)
    assert text.count("if eq $values.CAUSE.Value") == len(CAUSES)
    assert text.count("{{ end }}") == 1
    assert not any("{{" in entry.check + entry.act + entry.meaning for entry in CAUSES)
