"""Checks of a GPU host for `drumline doctor`."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.producers.collector import cupti
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.nccl_profiler.library import TIMED_INTERFACE
from drumline.schemas.topics import Topic

OK, WARN, FAIL = "ok", "warn", "fail"
#: cuptiGetVersion of CUDA 13.0 Update 1, which fixes a deadlock in cuptiActivityDisable(CONCURRENT_KERNEL) and a crash
#: in cuptiActivityFlushAll (forums.developer.nvidia.com/t/341320).
FIXED_HANGS = 130_001
#: The same of CUDA 13.4 Update 1, with which CPU use no longer grows with the length of a recording
#: (forums.developer.nvidia.com/t/383026, docs/design/cupti-issues.md).
FIXED_CPU_GROWTH = 130_401
#: Remedy for a Python that fails without drumline.
FIX_PYTHON = "fix it first: python3 -c 'import torch; torch.zeros(1).cuda()' with the jobs' Python"
#: Release of NCCL -> version of its profiler interface from there on.
INTERFACES = {(2, 29): 6, (2, 28): 5, (2, 27): 4, (2, 26): 3, (2, 24): 2, (2, 23): 1}
#: Release of NCCL -> operations that have no times from there on. Measured with 2.28.9, read in the
#: sources of 2.27.3, 2.29.7 and 2.30.7: NCCL finds times by a count that copies of a rank to itself, which every
#: all_to_all has, shift (docs/design/light-tier.md). Broadcasts since 2.29: NCCL's pull request 2369.
WITHOUT_TIMES = {
    (2, 29): "but none of broadcasts unless NCCL_ALLGATHERV_ENABLE=0; else as 2.28",
    (2, 28): "but in all_to_all's communicators not of operations that use a few channels",
    (2, 27): "but none in communicators with all_to_all",
}
#: What to do where NCCL's interface has no times.
USE_CUPTI = "drumline run --policy always records these jobs with CUPTI; or NCCL 2.27 or newer"
#: Run by the job's Python: prints the versions that PyTorch brings and CUPTI's answer as one JSON object.
PROBE = """
import ctypes, json
found = {"torch": "", "cuda": "", "cupti": [], "enable": None, "devices": 0, "nccl": 0}
try:
    import torch
    found["nccl"] = sum(n * 100 ** (2 - i) for i, n in enumerate(torch.cuda.nccl.version()[:3]))
except Exception:  # no PyTorch, or one without NCCL
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        pass
    found["nccl"] = number.value
try:
    import torch
    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda or ""
    found["devices"] = torch.cuda.device_count()
except ImportError:
    pass
found["cupti"] = sorted({l.split(None, 5)[5].strip() for l in open("/proc/self/maps") if "libcupti.so" in l})
if found["cupti"] and found["devices"]:
    library, version = ctypes.CDLL(found["cupti"][0]), ctypes.c_uint32(0)
    torch.cuda.init()
    library.cuptiGetVersion(ctypes.byref(version))
    found["version"] = version.value
    found["enable"] = library.cuptiActivityEnable(10)
    library.cuptiActivityDisable(10)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        state: OK, WARN or FAIL.
        text: finding.
        fix: remedy, "" where none is needed.
    """

    name: str
    state: str
    text: str
    fix: str = ""


def host_checks() -> list[Check]:
    """Check the GPU host itself."""
    named = {"driver": driver, "NVML": nvml, "callbacks": callbacks, "shared memory": shared_memory}
    return [safely(name, check) for name, check in {**named, "process_vm_readv": reading}.items()]


def driver() -> Check:
    """Check the NVIDIA driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        fix = "install the NVIDIA driver; in a container, use the NVIDIA runtime; a host without GPUs: --no-gpu"
        return Check("driver", FAIL, str(error), fix)
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    if problem := cuda.cuInit(0):
        return Check("driver", FAIL, f"cuInit gives {problem}", "see nvidia-smi; a driver update needs a reboot")
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {count.value} GPUs"
    return Check("driver", OK if count.value else FAIL, text, "" if count.value else "CUDA_VISIBLE_DEVICES hides all")


def nvml() -> Check:
    """Check NVML."""
    try:
        pynvml = importlib.import_module("pynvml")  # untyped, and only in the extra [gpu]
    except ImportError:
        return Check("NVML", WARN, f"nvidia-ml-py is not installed: no {Topic.DEVICE}", "pip install 'drumline[gpu]'")
    try:
        pynvml.nvmlInit()
        return Check("NVML", OK, f"driver {pynvml.nvmlSystemGetDriverVersion()}")
    except pynvml.NVMLError as error:
        return Check("NVML", FAIL, str(error), "nvidia-smi should work first")


def callbacks() -> Check:
    """Check the compiled CUPTI callbacks."""
    try:
        cupti.Callbacks()
    except (cupti.NoCupti, OSError) as error:
        return Check("callbacks", FAIL, str(error), "install a C compiler, then pip install --force-reinstall drumline")
    return Check("callbacks", OK, "built")


def shared_memory() -> Check:
    """Check memfd_create, which the buffer pool needs."""
    try:
        BufferPool()
    except (OSError, AttributeError) as error:
        return Check("shared memory", FAIL, f"memfd_create: {error}", "Linux 3.17 or newer is needed")
    return Check("shared memory", OK, "memfd_create works")


def reading() -> Check:
    """Check that a process may read another one's memory, as the decoder reads the job's kernel names."""
    secret = ctypes.create_string_buffer(b"drumline")
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)  # PR_SET_PTRACER_ANY
    script = (
        "import numpy, sys; from drumline.producers.decoder.remote_memory import RemoteMemory as R;"
        "print(R(int(sys.argv[1])).text(int(sys.argv[2]), 64))"
    )
    command = [sys.executable, "-c", script, str(os.getpid()), str(ctypes.addressof(secret))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "drumline" in done.stdout:
        return Check("process_vm_readv", OK, "allowed")
    reason = done.stderr.strip().splitlines()[-1:] or [done.stdout.strip()]
    fix = "allow process_vm_readv in the container's seccomp profile, or add the capability SYS_PTRACE"
    return Check("process_vm_readv", FAIL, reason[0], fix)


def job_checks(python: str, environment: Mapping[str, str]) -> list[Check]:
    """Check the Python that jobs run with."""
    path = shutil.which(python)
    if path is None:
        return [Check("job's Python", FAIL, f"{python} is not there", "name it with --python")]
    quiet = {**environment, "DRUMLINE_ATTACH": "0"}
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, env=quiet, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return [Check("job's Python", FAIL, f"{path}: import torch and a CUDA call take over 120 s", FIX_PYTHON)]
    except OSError as error:
        return [Check("job's Python", FAIL, f"{path}: {error.strerror}", "name it with --python")]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return [Check("job's Python", FAIL, f"{path}: {reason}", FIX_PYTHON)]
    try:  # other modules may print too
        probed = json.loads([line for line in done.stdout.splitlines() if line.startswith('{"torch"')][-1])
    except (IndexError, ValueError):
        return [Check("job's Python", FAIL, f"{path} does not answer like Python", "name it with --python")]
    if not probed["torch"]:
        text = f"{path} has no PyTorch: `drumline run` attaches to PyTorch jobs"
        fix = "name the jobs' Python with --python, or call drumline.attach()"
        return [Check("job's Python", WARN, text, fix), *([nccl(probed["nccl"])] if probed["nccl"] else [])]
    text = f"{path}: PyTorch {probed['torch']}, CUDA {probed['cuda'] or 'none'}"
    return [Check("job's Python", OK, text), nccl(probed["nccl"]), _cupti_check(probed)]


def nccl(version: int) -> Check:
    """Check what NCCL reports to drumline's plugin. `version`: as ncclGetVersion gives it; 0 = no NCCL."""
    if not version:
        return Check("NCCL", WARN, "not there: only steps that the job marks are recorded without CUPTI", USE_CUPTI)
    release = divmod(version // 100, 100)
    text = f"{release[0]}.{release[1]}.{version % 100}"
    interface = next((number for first, number in INTERFACES.items() if release >= first), 0)
    if not interface:
        return Check("NCCL", WARN, f"{text} has no interface for profilers: no collectives without CUPTI", USE_CUPTI)
    if interface < TIMED_INTERFACE:
        reason = f"its profiler interface {interface} has no GPU times: nothing is recorded without CUPTI"
        return Check("NCCL", WARN, f"{text}: {reason}", USE_CUPTI)
    lacks = next(limit for first, limit in WITHOUT_TIMES.items() if release >= first)
    return Check("NCCL", OK, f"{text}: profiler interface {interface}, with GPU times, {lacks}")


def _cupti_check(probed: Mapping[str, Any]) -> Check:
    """Check the CUPTI that the job's PyTorch loads, from the answer of PROBE."""
    paths = probed["cupti"]
    if not paths:
        return Check("CUPTI", FAIL, "PyTorch has not loaded it", "a PyTorch build with CUDA and its profiler")
    if len(paths) > 1:
        return Check("CUPTI", FAIL, f"loaded twice: {', '.join(paths)}", "keep one of them")
    if probed["enable"] is None:
        fix = "run this where jobs run, with their CUDA_VISIBLE_DEVICES"
        return Check("CUPTI", WARN, f"{paths[0]}; not tried: PyTorch sees no GPU", fix)
    if probed["enable"]:
        fix = "another profiler, DCGM's or Nsight's, may hold the GPU; stop it"
        return Check("CUPTI", FAIL, f"{paths[0]} denies recording: CUptiResult {probed['enable']}", fix)
    text = f"{paths[0]}, API {probed['version']}"
    if probed["version"] < FIXED_HANGS:
        text += ": may hang a job when recording is switched off, or crash in a flush"
        fix = "CUPTI of CUDA 13.0 Update 1 or newer; until then policy always, and PyTorch's profiler not in between"
        return Check("CUPTI", WARN, text, fix)
    goes = probed["version"] in cupti.FINALIZED_VERSIONS
    text += "; goes after a deep window" if goes else "; stays after a deep window and slows launches (13.5.25 goes)"
    if probed["version"] < FIXED_CPU_GROWTH:
        fix = "jobs of days: pip install --no-deps nvidia-cuda-cupti==13.4.92; its issues: docs/design/cupti-issues.md"
        return Check("CUPTI", WARN, f"{text}: a thread of its own needs more CPU the longer it records", fix)
    return Check("CUPTI", OK, text)


def environment_checks(environment: Mapping[str, str]) -> list[Check]:
    """Check for variables that prevent recording."""
    checks = []
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        if value := environment.get(name):
            checks.append(Check(name, WARN, f"{value}: drumline keeps away from jobs under it", f"unset {name}"))
    if environment.get("NCCL_NVTX_DISABLE", "0") not in ("", "0"):
        text = "NCCL makes no ranges: no communicators, no straggler verdicts"
        checks.append(Check("NCCL_NVTX_DISABLE", FAIL, text, "unset NCCL_NVTX_DISABLE"))
    return checks


def safely(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; its own failure is a finding too."""
    try:
        return check()
    except Exception as error:
        return Check(name, FAIL, f"{type(error).__name__}: {error}", "unexpected: please report it")
