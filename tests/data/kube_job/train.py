"""A training process in a container that knows nothing of drumline: torch is a stand-in, CUPTI plays a recording.

usage: train.py END; drumline comes from the start-up hook alone. It goes on until the file END is there, and prints
what CUPTI delivered as JSON.
"""

import json
import os
import sys
import time

import torch  # the hook wraps its import
from support.fakes.cupti import FakeCupti, RawBuffer

from drumline.producers.collector import attach, cupti
from drumline.producers.ipc.buffer_pool import Header

fake, raw = FakeCupti(), RawBuffer("ddp_steps").relocate()
attach.prepare, cupti.load = lambda: "fake", lambda path: fake.bound()
torch.use_cuda()
while len(fake.enabled) < 5 or not attach.attached().pool.header[Header.TICKS]:
    time.sleep(0.01)
first, last = raw.span()
plays = 0
while not os.path.exists(sys.argv[1]):
    fake.play(raw.shifted(time.time_ns() - last, plays * 100_000), raw.positions)
    time.sleep((last - first) / 1e9)
    plays += 1
print(json.dumps({"delivered": fake.delivered}), flush=True)
