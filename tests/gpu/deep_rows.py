"""Columns of the rows in a spool, by process, for the parts of deep.sh; and deep windows as the agent asks for them."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from drumline.producers.control.requests_in_force import as_file
from drumline.producers.ipc.control import FILE
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.control import WINDOW, Control
from drumline.schemas.model import model

#: Topic -> its columns of texts: name of the column and of its dictionary.
TEXTS = {
    "gpu.kernel.v1": {"name": "names"},
    "gpu.launch-count.v1": {"name": "names"},
    "gpu.stall.v1": {"name": "names", "reason": "reasons"},
    "gpu.launch.v1": {"scope": "scopes", "stack": "stacks", "caller": "callers"},
}


def columns(spool: Path, topic: str) -> dict[int, dict[str, np.ndarray]]:
    """Return the columns of a topic for each pid, in the order of `start_ns`; texts as objects."""
    result: dict[int, dict[str, np.ndarray]] = {}
    for identity in spool.glob("*/identity.json"):
        parts: dict[str, list[np.ndarray]] = {}
        for path in sorted([*identity.parent.glob("*.seg"), *identity.parent.glob("*.taken")]):
            for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                if getattr(frame, "kind", None) != DATA or frame.topic != topic:
                    continue
                batch = decode(model(topic), frame.body)
                for name, values in batch.columns.items():
                    is_text = name in TEXTS.get(topic, {})
                    texts = np.array(list(batch.strings(name, TEXTS[topic][name])), object) if is_text else values
                    parts.setdefault(name, []).append(texts)
        if parts:
            joined = {name: np.concatenate(values) for name, values in parts.items()}
            order = np.argsort(joined["start_ns"], kind="stable")
            pid = int(json.loads(identity.read_text())["process"]["pid"])
            result[pid] = {name: values[order] for name, values in joined.items()}
    return result


def processes(spool: Path) -> dict[int, dict[str, object]]:
    """Return policy and counts of each process of a spool."""
    records = [json.loads(path.read_text())["process"] for path in spool.glob("*/identity.json")]
    return {record["pid"]: {"policy": record.get("policy"), **record.get("collector", {})} for record in records}


@contextmanager
def window(spool: Path, job: str, ranks: tuple[int, ...] = (), **more: bool) -> Iterator[None]:
    """Ask for a deep window as the agent does: a file beside the spools, renewed once a second.

    `more`: launches, stacks, pc.
    """
    now_ns = time.time_ns()
    control = Control(key=f"window-{now_ns}", kind=WINDOW, policy="always", job=job, start_ns=now_ns - 10**10)
    control = replace(control, until_ns=now_ns + 300 * 10**9, requested_ns=now_ns, ranks=ranks, **more)
    halt, path = threading.Event(), spool / FILE

    def renew() -> None:
        while not halt.is_set():
            part = path.with_name(f"{FILE}.{os.getpid()}")
            part.write_text(as_file([control])[0])
            part.replace(path)
            halt.wait(1)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        halt.set()
        thread.join()
        with suppress(FileNotFoundError):
            path.unlink()
