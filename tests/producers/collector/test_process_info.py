"""GPUs as a process sees them, by a small libcuda that is compiled here in place of the driver's."""

import json
import subprocess
import sys

import pytest

SOURCE = """
#include <string.h>
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, 0xaa, 16); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, %s, 16); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute; return attribute == %d; }
int cuDeviceGetName(char *name, int length, int device) { strcpy(name, "Fake"); return 0; }
"""


SM = "sms=16 threads=39 blocks=106 registers=82 shared=81 reserved=111"


@pytest.mark.parametrize(
    ("digit", "unknown", "kind", "sm"), [("0xaa", 0, "GPU", SM), ("0xbb", 0, "MIG", SM), ("0xaa", 111, "GPU", "")]
)
def test_a_gpu_is_named_as_nvml_names_it_and_described_as_cuda_does(tmp_path, digit, unknown, kind, sm):
    """Only the second version of the call knows instances (CUDA driver API, cuDeviceGetUuid_v2)."""
    (tmp_path / "cuda.c").write_text(SOURCE % (digit, unknown))
    subprocess.run(["cc", "-shared", "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    code = "import json; from drumline.producers.collector.process_info import gpus; print(json.dumps(gpus()))"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, check=True
    )
    byte = digit[2:]
    digits = "-".join(byte * length for length in (4, 2, 2, 2, 6))
    assert json.loads(run.stdout) == [{"uuid": f"{kind}-{digits}", "model": "Fake", "sm": sm}]
