"""Questions to NVML about one GPU, and which of them it cannot answer.

`lib` is the module pynvml of nvidia-ml-py, or one that behaves like it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drumline.producers.batching.sample_envelopes import UNKNOWN

#: Members of nvmlValue_t by nvmlValueType_t (nvml.h).
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class NvmlLost(RuntimeError):
    """The driver or a GPU is lost: retry later with a new Nvml."""


class NvmlMissing(RuntimeError):
    """This host has no NVML, or no driver."""


class DriverMissing(NvmlMissing):
    """NVML is installed, and its driver is not loaded: it may be later."""


class NvmlQuery:
    """Asks NVML about one GPU, or about one MIG instance. Used by one thread; calls may block in the driver.

    A reading that the GPU does not support is asked once, then left out until NVML is opened again.

    Attributes:
        absent: NVML's reason by name of each reading that has no value.
    """

    def __init__(self, lib: Any, handle: Any, absent: dict[str, str] | None = None) -> None:
        self.lib, self.handle = lib, handle
        self.absent: dict[str, str] = {} if absent is None else absent
        self._unsupported: set[str] = set()

    def answer(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the answer of a call; None where the GPU has none. Raises NvmlLost."""
        if name in self._unsupported:
            return None
        lib = self.lib
        try:
            answer = call()
        except (lib.NVMLError_GpuIsLost, lib.NVMLError_Uninitialized, lib.NVMLError_ResetRequired) as error:
            raise NvmlLost(str(error)) from None
        except lib.NVMLError as error:
            self._without(name, str(error), isinstance(error, lib.NVMLError_NotSupported))
            return None
        except AttributeError as error:  # of an older nvidia-ml-py
            self._without(name, str(error), True)
            return None
        self.absent.pop(name, None)
        return answer

    def number(self, name: str, function: str, *arguments: str | int) -> int:
        """Return what a function of the GPU's handle answers. `arguments`: numbers, or names of constants of `lib`."""
        lib = self.lib
        answer = self.answer(
            name,
            lambda: getattr(lib, function)(
                self.handle, *(getattr(lib, value) if isinstance(value, str) else value for value in arguments)
            ),
        )
        return UNKNOWN if answer is None else int(answer[0] if isinstance(answer, list | tuple) else answer)

    def fields(self, wanted: Mapping[str, tuple[str, int]], *, spare: bool = False) -> dict[str, int]:
        """Return field values, with one call. `wanted`: name -> (constant of `lib`, scope). Raises NvmlLost.

        `spare`: with a last entry that is not read, for calls that may write behind their entries.
        """
        lib, row = self.lib, dict.fromkeys(wanted, UNKNOWN)
        ids: dict[str, tuple[int, int]] = {}
        for name, (constant, scope) in wanted.items():
            if name not in self._unsupported:
                number = getattr(lib, constant, None)
                if number is None:
                    self._without(name, f"nvidia-ml-py has no {constant}", True)
                else:
                    ids[name] = (number, scope)
        if not ids:
            return row
        requested = [*ids.values(), *([(lib.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, 0)] if spare else [])]
        values = self.answer("field values", lambda: lib.nvmlDeviceGetFieldValues(self.handle, requested))
        for name, value in zip(ids, values or (), strict=False):
            if value.nvmlReturn == lib.NVML_SUCCESS and value.valueType in _MEMBERS:
                row[name] = int(getattr(value.value, _MEMBERS[value.valueType]))
                self.absent.pop(name, None)
            else:
                self.report(name, value.nvmlReturn)
        return row

    def report(self, name: str, code: int) -> None:
        """Record NVML's error about one of several readings. Raises NvmlLost."""
        reason = text(self.lib.nvmlErrorString(code))
        if code == self.lib.NVML_ERROR_GPU_IS_LOST:
            raise NvmlLost(reason)
        self._without(name, reason, code == self.lib.NVML_ERROR_NOT_SUPPORTED)

    def _without(self, name: str, reason: str, unsupported: bool) -> None:
        self.absent[name] = reason
        if unsupported:
            self._unsupported.add(name)


def text(value: Any) -> str:
    """Return what NVML gives as bytes or as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
