"""The rows of a job on two hosts: keep them, and what the worker says of them: hosts_rows.py FILE [SLOW].

The file has a line of JSON (the phases: name, begin_ns, end_ns), then frames of a spool, by the time at which they were
sent. SLOW: JSON of {phase: [[[sender, receiver], ...], [late ranks]]}; without, that of hosts.py.
"""

import json
import lzma
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, Frame, head, scan
from drumline.schemas.batch import Batch, decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage
from drumline.streams.offline import latest, results, verdicts

KEPT = (Topic.STEP, Topic.COLLECTIVE, Topic.TRANSFER, Topic.PROGRESS, Topic.HOST, Topic.DEVICE, Topic.NETWORK)
#: Time at the begin of a phase that belongs to none: links and queues settle; ns.
SETTLE_NS = 1_500_000_000
Slow = Mapping[str, tuple[set[tuple[int, int]], set[int]]]


def pack(spools: Sequence[Path], job: str, phases: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write the rows of a job in the spools of its hosts."""
    frames: list[tuple[int, Frame]] = []
    for spool in spools:
        for path in sorted([*spool.glob("*/*.seg"), *spool.glob("*/*.taken")]):
            for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                if isinstance(frame, Frame) and frame.kind == DATA and frame.topic in KEPT:
                    envelope = decode(model(frame.topic), frame.body).envelope
                    if envelope.get("job", job) == job:
                        frames.append((int(envelope["sent_ns"]), frame))
    with lzma.open(target, "wb", preset=3) as file:
        file.write(json.dumps(list(phases)).encode() + b"\n")
        for _, frame in sorted(frames, key=lambda item: item[0]):
            file.write(head(DATA, frame.topic, frame.key, frame.rows, frame.batches, frame.body) + frame.body)


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[int, Batch]]]:
    """Return the phases, and (time, batch)."""
    first, _, rest = lzma.decompress(path.read_bytes()).partition(b"\n")
    frames = (frame for frame in scan(rest, True) if isinstance(frame, Frame))
    batches = (decode(model(frame.topic), frame.body) for frame in frames)
    return json.loads(first), [(int(batch.envelope["sent_ns"]), batch) for batch in batches]


def evaluate(path: Path, slow: Slow, config: StragglerConfig | None = None) -> dict[str, Any]:
    """Return of each phase what was said; `table`: the same as lines of text."""
    phases, batches = read(path)
    rows = Counter({topic: sum(b.rows for _, b in batches if b.topic == topic) for topic in KEPT})
    windows = [_window(batch) for batch in latest(verdicts(batches, config or StragglerConfig())).values()]
    out, table = [], [f"rows: {dict(rows)}"]
    for phase in phases:
        flows, late = slow.get(phase["name"], (set(), set()))
        inside = [
            w for w in windows if w["begin_ns"] >= phase["begin_ns"] + SETTLE_NS and w["end_ns"] <= phase["end_ns"]
        ]
        facts = {
            "windows": len(inside),
            "link_named": sum(bool(w["flows"]) for w in inside),
            "flows_right": sum(set(w["flows"]) == flows for w in inside),
            "worst_right": sum(bool(w["flows"]) and w["flows"][0] in flows for w in inside),
            "direction_right": sum(
                w["direction"] == ("both" if len(flows) > 1 else "one_way") for w in inside if w["flows"]
            ),
            "late_right": sum(w["late"] == late for w in inside),
            "others_named": sum(bool(w["late"] - late) for w in inside),
            "job": Counter(f"{w['severity']} {w['cause']} {w['detail']}".strip() for w in inside),
            "named": Counter(str(sorted(w["late"])) for w in inside),
            "step_ms": round(float(np.median([w["step_ms"] for w in inside])), 1) if inside else 0.0,
            "lost_share": [round(w["share"], 3) for w in inside],
            "rates": [w["rates"] for w in inside],
        }
        out.append({**phase, **facts})
        kept = {name: value for name, value in facts.items() if name not in ("lost_share", "rates")}
        table.append(f"{phase['name']}: {kept}")
        table.append(f"    rates: {facts['rates'][:3]} lost {facts['lost_share'][:3]}")
        table += [f"    transfers: {line}" for line in _ends(batches, phase)]
    hangs = [_hang(batch, phases) for batch in _hangs(batches)]
    return {"rows": rows, "phases": out, "hangs": hangs, "table": [*table, *(f"hang: {hang}" for hang in hangs)]}


def _window(batch: Batch) -> dict[str, Any]:
    """Return what a verdict says of a window."""
    columns, envelope = batch.columns, batch.envelope
    texts = {
        column: batch.strings(column, texts_of).tolist()
        for column, texts_of in (("cause", "causes"), ("detail", "details"))
    }
    evidence = json.loads(batch.strings("evidence_json", "evidence").tolist()[0])
    is_link = texts["cause"][0] == "slow_link" and columns["severity"][0] > 0
    flows = evidence.get("flows", []) if is_link else []
    ranks = zip(columns["rank"].tolist(), columns["severity"].tolist(), strict=True)
    return {
        "begin_ns": envelope["window_start_ns"], "end_ns": envelope["window_end_ns"],
        "severity": int(columns["severity"][0]), "cause": texts["cause"][0], "detail": texts["detail"][0],
        "flows": [(flow["from"], flow["to"]) for flow in flows], "direction": evidence.get("direction", ""),
        "rates": [(flow["gb_s"], flow["expected_gb_s"], flow["expected_by"]) for flow in flows],
        "late": {rank for rank, severity in ranks if rank >= 0 and severity > 0},
        "share": float(columns["lost_share"][0]), "step_ms": envelope["step_ns"] / 1e6,
    }  # fmt: skip


def _ends(batches: Iterable[tuple[int, Batch]], phase: Mapping[str, Any]) -> list[str]:
    """Return what each end of each flow saw in a phase."""
    sums: dict[tuple[int, str, int], np.ndarray] = {}
    names = (
        "operations",
        "transfers",
        "bytes",
        "busy_ns",
        "network_ns",
        "peer_wait_ns",
        "gpu_wait_ns",
        "retransmitted",
    )
    for _, batch in batches:
        if batch.topic != Topic.TRANSFER or not batch.rows:
            continue
        start, directions = batch.columns["start_ns"], batch.strings("direction", "directions").tolist()
        for row in range(batch.rows):
            if phase["begin_ns"] + SETTLE_NS <= start[row] <= phase["end_ns"] - 1_000_000_000:
                place = int(batch.envelope["rank"]), str(directions[row]), int(batch.columns["peer"][row])
                values = np.array([float(batch.columns[name][row]) for name in names])
                sums[place] = sums.get(place, np.zeros(len(names))) + values
    return [
        f"rank {rank} {direction} {peer}: {of[2] / max(of[3], 1):.3f} GB/s busy, "
        + ", ".join(f"{name} {value:.3g}" for name, value in zip(names, of.tolist(), strict=True))
        for (rank, direction, peer), of in sorted(sums.items())
    ]


def _hangs(batches: Iterable[tuple[int, Batch]]) -> list[Batch]:
    stages = [((Topic.PROGRESS,), HangStage({}, HangConfig()))]
    return [batch for batch in results(batches, stages, 5_000_000_000) if batch.topic == Topic.HANG]


def _hang(batch: Batch, phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    begun = [phase for phase in phases if phase["begin_ns"] <= batch.envelope["time_ns"]]
    cut_ns = next((phase["begin_ns"] for phase in phases if phase["name"] == "cut"), batch.envelope["time_ns"])
    return {
        "phase": begun[-1]["name"] if begun else "", "state": batch.envelope["state"],
        "after_cut_s": round((batch.envelope["time_ns"] - cut_ns) / 1e9, 1),
        "ranks": batch.columns["rank"].tolist(), "note": batch.strings("note", "notes").tolist()[0],
    }  # fmt: skip


if __name__ == "__main__":
    from hosts import SLOW

    chosen = {name: (set(map(tuple, flows)), set(late)) for name, (flows, late) in json.loads(sys.argv[2]).items()} \
        if len(sys.argv) > 2 else SLOW  # fmt: skip
    for line in evaluate(Path(sys.argv[1]), chosen)["table"]:
        print(line)
