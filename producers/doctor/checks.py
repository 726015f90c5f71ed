"""What must be right on a GPU host, checked one by one: `drumline doctor`."""

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

from drumline.producers.collector import cupti
from drumline.producers.ipc.buffer_pool import BufferPool

OK, WARN, FAIL = "ok", "warn", "fail"
#: cuptiGetVersion of CUDA 13.0 Update 1; its notes say that a deadlock in cuptiActivityDisable(CONCURRENT_KERNEL) and a
#: crash in cuptiActivityFlushAll are mended (forums.developer.nvidia.com/t/341320).
MENDED = 130_001
#: Of CUDA 13.4 Update 1; its notes say that CPU use does not grow with the length of a recording any more
#: (forums.developer.nvidia.com/t/383026), and it does not (design/cupti-issues.md). With 13.0 a thread of CUPTI's took
#: 0.06 of a core after 8 minutes.
STEADY = 130_401
#: What to do about a Python that fails by itself.
ALONE = "mend it first: python3 -c 'import torch; torch.zeros(1).cuda()' with the jobs' Python"
#: Run by the job's Python: what PyTorch brings, and whether CUPTI lets us in. Prints one JSON object.
PROBE = """
import ctypes, json
found = {"torch": "", "cuda": "", "cupti": [], "enable": None, "devices": 0}
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
    """`state`: OK, WARN or FAIL; `text`: what was found; `fix`: what to do, "" where nothing is."""

    name: str
    state: str
    text: str
    fix: str = ""


def host_checks() -> list[Check]:
    """Of the GPU host itself."""
    named = {"driver": driver, "NVML": nvml, "callbacks": callbacks, "shared memory": shared_memory}
    return [safely(name, check) for name, check in {**named, "process_vm_readv": reading}.items()]


def driver() -> Check:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        fix = "install the NVIDIA driver; in a container, use the NVIDIA runtime; a host without GPUs: --no-gpu"
        return Check("driver", FAIL, str(error), fix)
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    if problem := cuda.cuInit(0):
        return Check("driver", FAIL, f"cuInit gives {problem}", "nvidia-smi says more; a driver update needs a reboot")
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {count.value} GPUs"
    return Check("driver", OK if count.value else FAIL, text, "" if count.value else "CUDA_VISIBLE_DEVICES hides all")


def nvml() -> Check:
    try:
        pynvml = importlib.import_module("pynvml")  # untyped, and only in the extra [gpu]
    except ImportError:
        return Check("NVML", WARN, "nvidia-ml-py is not installed: no gpu.device.v1", "pip install 'drumline[gpu]'")
    try:
        pynvml.nvmlInit()
        return Check("NVML", OK, f"driver {pynvml.nvmlSystemGetDriverVersion()}")
    except pynvml.NVMLError as error:
        return Check("NVML", FAIL, str(error), "nvidia-smi should work first")


def callbacks() -> Check:
    try:
        cupti.Callbacks()
    except (cupti.NoCupti, OSError) as error:
        return Check("callbacks", FAIL, str(error), "install a C compiler, then pip install --force-reinstall drumline")
    return Check("callbacks", OK, "built")


def shared_memory() -> Check:
    try:
        BufferPool()
    except (OSError, AttributeError) as error:
        return Check("shared memory", FAIL, f"memfd_create: {error}", "Linux 3.17 or newer is needed")
    return Check("shared memory", OK, "memfd_create works")


def reading() -> Check:
    """Whether one of our processes may read another one's memory, as the decoder reads the job's kernel names."""
    secret = ctypes.create_string_buffer(b"drumline")
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)  # PR_SET_PTRACER_ANY
    script = (
        "import numpy, sys; from drumline.producers.decoder.remote_memory import RemoteMemory as R;"
        "print(R(int(sys.argv[1])).text(int(sys.argv[2])))"
    )
    command = [sys.executable, "-c", script, str(os.getpid()), str(ctypes.addressof(secret))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "drumline" in done.stdout:
        return Check("process_vm_readv", OK, "allowed")
    why = done.stderr.strip().splitlines()[-1:] or [done.stdout.strip()]
    fix = "allow process_vm_readv in the container's seccomp profile, or add the capability SYS_PTRACE"
    return Check("process_vm_readv", FAIL, why[0], fix)


def job_checks(python: str, environment: Mapping[str, str]) -> list[Check]:
    """Of the Python that jobs run with."""
    path = shutil.which(python)
    if path is None:
        return [Check("job's Python", FAIL, f"{python} is not there", "name it with --python")]
    quiet = {**environment, "DRUMLINE_ATTACH": "0"}
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, env=quiet, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return [Check("job's Python", FAIL, f"{path}: import torch and the first CUDA call take over 120 s", ALONE)]
    except OSError as error:
        return [Check("job's Python", FAIL, f"{path}: {error.strerror}", "name it with --python")]
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return [Check("job's Python", FAIL, f"{path}: {why}", ALONE)]
    try:  # others may print too
        found = json.loads([line for line in done.stdout.splitlines() if line.startswith('{"torch"')][-1])
    except (IndexError, ValueError):
        return [Check("job's Python", FAIL, f"{path} does not answer as a Python does", "name it with --python")]
    if not found["torch"]:
        text = f"{path} has no PyTorch: `drumline run` attaches to PyTorch jobs"
        return [Check("job's Python", WARN, text, "name the jobs' Python with --python, or call drumline.attach()")]
    checks = [Check("job's Python", OK, f"{path}: PyTorch {found['torch']}, CUDA {found['cuda'] or 'none'}")]
    paths = found["cupti"]
    if not paths:
        checks.append(Check("CUPTI", FAIL, "PyTorch has not loaded it", "a PyTorch build with CUDA and its profiler"))
    elif len(paths) > 1:
        checks.append(Check("CUPTI", FAIL, f"loaded twice: {', '.join(paths)}", "keep one of them"))
    elif found["enable"] is None:
        fix = "run this where jobs run, with their CUDA_VISIBLE_DEVICES"
        checks.append(Check("CUPTI", WARN, f"{paths[0]}; not tried: PyTorch sees no GPU", fix))
    elif found["enable"]:
        fix = "another profiler, DCGM's or Nsight's, may hold the GPU; stop it"
        checks.append(Check("CUPTI", FAIL, f"{paths[0]} refuses: CUptiResult {found['enable']}", fix))
    elif found["version"] < MENDED:
        text = f"{paths[0]}, API {found['version']}: may hang a job when recording is switched off, or crash in a flush"
        fix = "CUPTI of CUDA 13.0 Update 1 or newer; until then policy always, and PyTorch's profiler not in between"
        checks.append(Check("CUPTI", WARN, text, fix))
    elif found["version"] < STEADY:
        text = f"{paths[0]}, API {found['version']}: a thread of its own needs more CPU the longer it records"
        fix = "jobs of days: pip install --no-deps nvidia-cuda-cupti==13.4.92; its issues: docs/design/cupti-issues.md"
        checks.append(Check("CUPTI", WARN, text, fix))
    else:
        checks.append(Check("CUPTI", OK, f"{paths[0]}, API {found['version']}"))
    return checks


def environment_checks(environment: Mapping[str, str]) -> list[Check]:
    """Variables that keep something from being seen."""
    checks = []
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        if value := environment.get(name):
            checks.append(Check(name, WARN, f"{value}: drumline keeps away from jobs under it", f"unset {name}"))
    if environment.get("NCCL_NVTX_DISABLE", "0") not in ("", "0"):
        text = "NCCL makes no ranges: no communicators, no straggler verdicts"
        checks.append(Check("NCCL_NVTX_DISABLE", FAIL, text, "unset NCCL_NVTX_DISABLE"))
    return checks


def safely(name: str, check: Callable[[], Check]) -> Check:
    """A check whose own failure is a finding."""
    try:
        return check()
    except Exception as error:
        return Check(name, FAIL, f"{type(error).__name__}: {error}", "unexpected: please report it")
