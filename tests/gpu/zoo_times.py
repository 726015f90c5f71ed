"""Compare the times of NCCL's operations in both tiers of a recording of the zoo: zoo_times.py SHAPE_FOLDER...

Prints a JSON object a shape. Operations of a rank are matched within a step by communicator and ordinal, and by the
order of their kinds where those differ. Communicators that only one tier names are paired by their operations.

offset_us      by rank: median of (stop by NCCL's plugin - stop by CUPTI), which is taken from all differences
by_kind        operations of CUPTI in steps that both have; share of them `without_light`; differences of starts,
               stops and durations: median, and absolute values at 50 %, 99 % and at most; us; `late_or_early`: share
               of starts that differ by more than 100 us
unmatched      operations by reason: `light_left_step_out` (not measured), `cupti_lacks_step`, `only_cupti`,
               `only_light` (in steps that both have), `in_no_step`
overlapping    by tier: share of operations that begin before the one before them on the communicator has ended
"""

import json
import lzma
import sys
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from drumline.producers.spool.segment_format import Frame, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model

TOPIC = "gpu.collective.v1"
COLUMNS = ("step", "ordinal", "start_ns", "duration_ns", "bytes")
#: A start that differs by more is another operation's; ns.
FAR_NS = 100_000
#: Starts may lie so much before the stop of the operation before, by the clock's resolution; ns.
TOUCHING_NS = 1_000
#: Operations of one step: rows of a tier in order.
Rows = dict[str, np.ndarray]
Pairs = tuple[np.ndarray, np.ndarray]


def operations(path: Path) -> dict[int, dict[str, Rows]]:
    """Return the operations of a tier by rank and communicator, ordered by step and ordinal."""
    parts: dict[int, dict[str, list[Rows]]] = {}
    for frame in scan(lzma.decompress(path.read_bytes()), True):
        if not isinstance(frame, Frame) or frame.topic != TOPIC:
            continue
        batch = decode(model(frame.topic), frame.body)
        if batch.rows:
            rows = {name: batch.columns[name].astype(np.int64) for name in COLUMNS}
            rows["kind"] = batch.strings("operation", "operations")
            ranks = parts.setdefault(int(batch.envelope["rank"]), {})
            ranks.setdefault(str(batch.envelope["communicator"]), []).append(rows)
    return {rank: {name: ordered(rows) for name, rows in comms.items()} for rank, comms in parts.items()}


def ordered(parts: list[Rows]) -> Rows:
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((rows["ordinal"], rows["step"]))
    return {name: column[order] for name, column in rows.items()}


def paired_names(light: dict[str, Rows], cupti: dict[str, Rows]) -> Iterator[tuple[str, str]]:
    """Yield communicators of both tiers: of the same name, and then those with most operations of the same kinds."""
    same = light.keys() & cupti.keys()
    yield from ((name, name) for name in sorted(same))
    rest = sorted(cupti.keys() - same)
    for name in sorted(light.keys() - same):
        kinds = Counter(light[name]["kind"])
        scores = [sum((kinds & Counter(cupti[guess]["kind"])).values()) for guess in rest]
        if scores and max(scores):
            yield name, rest.pop(int(np.argmax(scores)))


def matched(light: Rows, cupti: Rows, reasons: Counter[str]) -> tuple[Pairs, np.ndarray]:
    """Return the positions of the same operations in both, and which of CUPTI's lie in steps that both have."""
    steps = np.intersect1d(light["step"], cupti["step"])
    steps = steps[steps >= 0]
    common = np.isin(cupti["step"], steps)
    reasons["in_no_step"] += int((cupti["step"] < 0).sum())
    reasons["light_left_step_out"] += int((~common & (cupti["step"] >= 0)).sum())
    reasons["cupti_lacks_step"] += int((~np.isin(light["step"], steps) & (light["step"] >= 0)).sum())
    ends = [np.searchsorted(rows["step"], steps, side) for rows in (light, cupti) for side in ("left", "right")]
    at_light, at_cupti = [], []
    for a, b, c, d in zip(*ends, strict=True):
        for first, second in same_operations(light, cupti, slice(a, b), slice(c, d)):
            at_light.append(a + first)
            at_cupti.append(c + second)
    none = [np.empty(0, np.int64)]
    pairs = np.concatenate(at_light or none), np.concatenate(at_cupti or none)
    reasons["only_cupti"] += int(common.sum()) - len(pairs[1])
    reasons["only_light"] += int(np.isin(light["step"], steps).sum()) - len(pairs[0])
    return pairs, common


def same_operations(light: Rows, cupti: Rows, of_light: slice, of_cupti: slice) -> Iterator[Pairs]:
    """Yield positions of the same operations in a step: by their ordinals, else by the order of their kinds."""
    kinds, peers = light["kind"][of_light], cupti["kind"][of_cupti]
    _, first, second = np.intersect1d(light["ordinal"][of_light], cupti["ordinal"][of_cupti], return_indices=True)
    if len(first) == len(kinds) and (kinds[first] == peers[second]).all():
        yield first, second
        return
    for block in SequenceMatcher(None, list(kinds), list(peers), autojunk=False).get_matching_blocks():
        yield block.a + np.arange(block.size), block.b + np.arange(block.size)


def quantiles(difference_ns: np.ndarray) -> dict[str, float]:
    """Return the median, and absolute differences at 50 %, 99 % and at most; us."""
    if not len(difference_ns):
        return {}
    sizes = np.abs(difference_ns) / 1e3
    values = {"median": np.median(difference_ns) / 1e3, "p50": np.median(sizes), "p99": np.quantile(sizes, 0.99)}
    return {name: round(float(value), 1) for name, value in {**values, "max": sizes.max()}.items()}


def overlapping(tier: dict[int, dict[str, Rows]]) -> float:
    """Return the share of operations that begin before the one before them has ended."""
    early = total = 0
    for comms in tier.values():
        for rows in comms.values():
            stop_ns = rows["start_ns"] + rows["duration_ns"]
            beside = (np.diff(rows["step"]) == 0) & (np.diff(rows["ordinal"]) == 1)
            early += int((beside & (rows["start_ns"][1:] < stop_ns[:-1] - TOUCHING_NS)).sum())
            total += int(beside.sum())
    return round(early / total, 4) if total else 0.0


def compare(folder: Path) -> dict[str, object]:
    light, cupti = operations(folder / "light.xz"), operations(folder / "cupti.xz")
    reasons: Counter[str] = Counter()
    offsets: dict[int, float] = {}
    seen: Counter[str] = Counter()
    parts: list[dict[str, np.ndarray]] = []
    for rank in sorted(light.keys() & cupti.keys()):
        pairs: list[dict[str, np.ndarray]] = []
        names = list(paired_names(light[rank], cupti[rank]))
        for unnamed in cupti[rank].keys() - {name for _, name in names}:
            reasons["light_lacks_communicator"] += len(cupti[rank][unnamed]["step"])
        for name, guess in names:
            rows, peers = light[rank][name], cupti[rank][guess]
            (at, at_cupti), common = matched(rows, peers, reasons)
            seen.update(peers["kind"][common])
            start_ns = rows["start_ns"][at] - peers["start_ns"][at_cupti]
            length_ns = rows["duration_ns"][at] - peers["duration_ns"][at_cupti]
            pairs.append({"kind": peers["kind"][at_cupti], "start": start_ns, "duration": length_ns})
        joined = {key: np.concatenate([part[key] for part in pairs]) for key in pairs[0]} if pairs else {}
        if joined and len(joined["start"]):
            joined["stop"] = joined["start"] + joined["duration"]
            offset_ns = int(np.median(joined["stop"]))
            offsets[rank] = round(offset_ns / 1e3, 1)
            parts.append({**joined, "start": joined["start"] - offset_ns, "stop": joined["stop"] - offset_ns})
    kinds = {}
    for kind in sorted(seen):
        of_kind = {
            key: np.concatenate([part[key][part["kind"] == kind] for part in parts] or [np.empty(0)])
            for key in ("start", "stop", "duration")
        }
        count = len(of_kind["start"])
        kinds[kind] = {
            "operations": seen[kind], "matched": count, "without_light": round(1 - count / seen[kind], 4),
            "late_or_early": round(float((np.abs(of_kind["start"]) > FAR_NS).mean()), 4) if count else None,
            **{f"{key}_us": quantiles(column) for key, column in of_kind.items()},
        }  # fmt: skip
    tiers = {"light": light, "cupti": cupti}
    total = {
        name: sum(len(rows["step"]) for comms in tier.values() for rows in comms.values())
        for name, tier in tiers.items()
    }
    return {
        "shape": folder.name, "operations": total, "offset_us": offsets, "by_kind": kinds,
        "unmatched": {reason: count for reason, count in reasons.items() if count},
        "overlapping": {name: overlapping(tier) for name, tier in tiers.items()},
    }  # fmt: skip


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(compare(Path(argument))), flush=True)
