"""PC sampling of the fake CUPTI: each reading of its samples gives the same two kernels."""

from __future__ import annotations

import ctypes
import threading

from drumline.producers.decoder.cupti_layout import KERNEL
from drumline.producers.ipc.pc_layout import NAME_AT, PC_BYTES, REASON_BYTES, REASONS_AT, DataField

VOID, U64 = ctypes.c_void_p, ctypes.c_uint64
INVALID_OPERATION, NOT_COMPATIBLE, NO_PRIVILEGE = 7, 14, 35
STALLED = "smsp__pcsamp_warps_issue_stalled_"
REASONS = [STALLED + name + part for name in ("long_scoreboard", "selected") for part in ("", "_not_issued")]
#: Kernel -> samples of each reason, in each reading.
KERNELS = {b"_Z6memoryPf": (80, 60, 20, 0), b"_Z7computePf": (10, 5, 90, 0)}
OUTSIDE, DROPPED = 7, 3


def numbers_at(address: int, count: int) -> ctypes.Array:
    return (U64 * count).from_address(address)


class FakePcSampling:
    """`fake`: the CUPTI whose kernel records must be on before. `rejects`: result of Enable, 0 = success.
    `rejects_settings`: result of its settings.

    `rejected`: Enable was. `is_on`: it samples. `readings`: times that samples were read. `contexts`: primary contexts
    that are retained. Once enabled, it switches no kernel records on. It has no cuptiPCSamplingDisable: that may hang.
    """

    def __init__(self, fake) -> None:
        self.fake, self.rejects, self.readings, self.contexts = fake, 0, 0, 0
        self.is_on = self.rejected = False
        self.rejects_settings = 0
        self._names = [ctypes.create_string_buffer(name) for name in KERNELS]
        call = ctypes.CFUNCTYPE(ctypes.c_int, VOID)
        for name in ("Enable", "Start", "Stop", "GetData", "GetNumStallReasons", "GetStallReasons",
                     "SetConfigurationAttribute"):  # fmt: skip
            setattr(self, f"cuptiPCSampling{name}", call(getattr(self, f"_{name.lower()}")))

    def cuDevicePrimaryCtxRetain(self, context, device) -> int:  # noqa: N802
        ctypes.cast(context, ctypes.POINTER(VOID))[0] = 0xC0DE + device
        self.contexts += 1
        return 0

    def cuDeviceGet(self, device, ordinal) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDeviceGetUuid_v2(self, uuid, device) -> int:  # noqa: N802
        uuid.raw = bytes([device.value]) * 16
        return 0

    def cuDevicePrimaryCtxRelease(self, device) -> int:  # noqa: N802
        self.contexts -= 1
        return 0

    def _enable(self, parameters):
        assert KERNEL in self.fake.enabled, "kernel records come first"
        assert numbers_at(parameters, 3)[2] == 0xC0DE
        assert threading.current_thread() is threading.main_thread(), "the thread that launches"
        self.rejected = bool(self.rejects)
        if not self.rejected:
            self.fake.reject, self.fake.only = NOT_COMPATIBLE, KERNEL
        return self.rejects

    def _start(self, parameters):
        assert not self.rejected
        self.is_on = True
        return 0

    def _stop(self, parameters):
        self.is_on = False
        return 0

    def _getdata(self, parameters):
        self._fill(numbers_at(parameters, 4)[3])
        return 0

    def _getnumstallreasons(self, parameters):
        ctypes.c_size_t.from_address(numbers_at(parameters, 4)[3]).value = len(REASONS)
        return 0

    def _getstallreasons(self, parameters):
        count, indices, names = numbers_at(parameters, 6)[3:]
        for number, (text, at) in enumerate(zip(REASONS, numbers_at(names, count), strict=True)):
            ctypes.c_uint32.from_address(indices + 4 * number).value = number + 1
            ctypes.memmove(at, text.encode() + b"\0", len(text) + 1)
        return 0

    def _setconfigurationattribute(self, parameters):
        self.rejected = bool(self.rejects_settings)
        return self.rejects_settings

    def _fill(self, data):
        """Write the kernels of one reading, as CUPTI does, into the places that the caller prepared."""
        fields = numbers_at(data, len(DataField))
        samples = 0
        for number, (name, counts) in enumerate(zip(self._names, KERNELS.values(), strict=True)):
            place = fields[DataField.PC_DATA] + number * PC_BYTES
            assert numbers_at(place, 1)[0] == PC_BYTES
            assert numbers_at(place + REASONS_AT, 1)[0] == len(REASONS), "the place was renewed"
            numbers_at(place + NAME_AT, 1)[0] = ctypes.addressof(name)
            reasons = numbers_at(place + REASONS_AT, 2)[1]
            kept = [(index + 1, count) for index, count in enumerate(counts) if count]
            for at, pair in enumerate(kept):
                (ctypes.c_uint32 * 2).from_address(reasons + at * REASON_BYTES)[:] = pair
            numbers_at(place + REASONS_AT, 1)[0] = len(kept)
            samples += counts[0] + counts[2]
        fields[DataField.PCS], fields[DataField.REMAINING] = len(KERNELS), 0
        fields[DataField.OUTSIDE], fields[DataField.DROPPED] = OUTSIDE, DROPPED
        fields[DataField.TOTAL] = samples + OUTSIDE + DROPPED
        self.readings += 1
