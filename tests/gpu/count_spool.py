"""Compare what the processes of a spool counted with the rows in it: count_spool.py SPOOL [NAME].

NAME: kernels with that in their name are counted by themselves. `collectives`: steps by how many they have; `good`:
those among them that are not skipped. `empty`: steps without a kernel. `delay_s`: from the end of a step on the host to
its row; median, 95th percentile and longest."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model

for identity in sorted(Path(sys.argv[1]).glob("*/identity.json")):
    process = json.loads(identity.read_text())["process"]
    rows, lost, named, collectives, delays_s = Counter(), Counter(), 0, Counter(), []
    good, empty = Counter(), 0
    for path in sorted([*identity.parent.glob("*.seg"), *identity.parent.glob("*.taken")]):
        for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
            if frame.kind == DATA:
                batch = decode(model(frame.topic), frame.body)
                rows[frame.topic] += batch.rows
                lost[frame.topic] += batch.envelope["dropped_before"]
                if frame.topic == "gpu.kernel.v1" and len(sys.argv) > 2:
                    named += sum(sys.argv[2] in name for name in batch.strings("name", "names"))
                if frame.topic == "gpu.step.v1" and batch.rows:
                    collectives.update(batch.columns["collectives"].tolist())
                    good.update(batch.columns["collectives"][batch.columns["skipped"] == 0].tolist())
                    empty += int((batch.columns["kernels"] == 0).sum())
                    end_ns = batch.columns["start_ns"] + batch.columns["duration_ns"]
                    delays_s += ((batch.envelope["sent_ns"] - end_ns) / 1e9).tolist()
            else:
                lost[frame.topic] += frame.rows
    status = {"rank": process["rank"], "policy": process.get("policy"), "collector": process.get("collector")}
    times = [round(float(np.quantile(delays_s, q)), 2) for q in (0.5, 0.95, 1)] if delays_s else []
    steps = {"collectives": collectives, "good": good, "empty": empty, "delay_s": times}
    print(json.dumps({**status, "rows": rows, "named": named, "lost": lost, **steps}))
