"""A rank of a job for deep windows: policy auto, a fake CUPTI, steps that all ranks begin at the same times.

usage: deep_job.py STEP_S; prints "on TIME" and "off TIME" (s since the epoch) when the fake CUPTI is switched.
"""

import sys
import time

from support.fakes.cupti import FakeCupti, RawBuffer, record

from drumline.producers.collector import attach
from drumline.producers.decoder.cupti_layout import KERNEL


def main() -> None:
    step_s = float(sys.argv[1])
    fake, raw = FakeCupti(), RawBuffer("ddp_steps").relocate()
    name = int(raw.data.view("<u8")[raw.field(KERNEL, 104, "<u8")[0]])
    assert attach.attach("auto", cupti=fake.bound())
    was_on, step = False, int(time.time() / step_s) % 1_000_000
    while True:
        attach.step(step)
        is_on = len(fake.enabled) >= 5
        if is_on:
            now = time.time_ns()
            fake.play(record(KERNEL, start=now, end=now + round(step_s * 5e8), name=name), [(KERNEL, 0)])
        if is_on != was_on:
            print("on" if is_on else "off", time.time(), flush=True)
            was_on = is_on
        now = time.time() / step_s
        step = max(step + 1, int(now + 1) % 1_000_000)  # on a busy machine some are left out, by each rank its own
        time.sleep((1 - now % 1) * step_s)


main()
