"""`drumline agent` on a host whose NVML lists eight GPUs: those that there are, again and again, each called by itself.

A copy has a UUID of its own. The agent's threads have names, so that /proc tells the CPU of each.
"""

import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pynvml

from drumline.cli.main import main

GPUS = 8
present = 0


def handle(index: int) -> object:
    result = pynvml.nvmlDeviceGetHandleByIndex(index % present)
    result.copy = index // present
    return result


def uuid(device: object) -> str:
    copy = getattr(device, "copy", 0)
    return f"{pynvml.nvmlDeviceGetUUID(device)}{f'-copy{copy}' if copy else ''}"


def init() -> None:
    global present
    pynvml.nvmlInit()
    present = pynvml.nvmlDeviceGetCount()


def named(thread: threading.Thread) -> None:
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(thread.name[:15])
    kind_run[type(thread)](thread)


eight = ModuleType("pynvml")
vars(eight).update(vars(pynvml))
eight.nvmlInit, eight.nvmlDeviceGetCount = init, lambda: GPUS
eight.nvmlDeviceGetHandleByIndex, eight.nvmlDeviceGetUUID = handle, uuid
sys.modules["pynvml"] = eight

from drumline.producers.host.process_sampler import HostSampler  # noqa: E402
from drumline.producers.network.link_sampler import LinkSampler  # noqa: E402
from drumline.producers.nvml.sampler import DeviceSampler  # noqa: E402

kind_run = {kind: kind.run for kind in (DeviceSampler, HostSampler, LinkSampler)}
for kind in kind_run:
    kind.run = named
sys.argv = ["drumline", "agent"]
main()
