"""Checks of NCCL's plugin, which policies light and auto record with, for `drumline doctor`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from drumline.producers.doctor.checks import FAIL, OK, USE_CUPTI, WARN, Check
from drumline.producers.ipc.plain_file import open_plain
from drumline.producers.launcher import CHAIN, PLUGIN
from drumline.producers.nccl_profiler import library
from drumline.producers.rings.ring_file import HEADER_BYTES, LAYOUT, MAGIC, SUFFIX, HeaderField


def plugin() -> Check:
    """Check that drumline's plugin is there and loads, and which versions of NCCL's interface it has."""
    path = library.path()
    if path is None:
        fix = "install a C compiler, then pip install --force-reinstall drumline; until then --policy always"
        return Check("NCCL plugin", FAIL, "not built: policies light and auto record nothing", fix)
    try:
        versions = _versions(ctypes.CDLL(path))
    except OSError as error:
        return Check("NCCL plugin", FAIL, str(error), "pip install --force-reinstall drumline on this host")
    return Check("NCCL plugin", OK, f"{path}: interfaces {_text(versions)}; other libraries stay unseen")


def users_plugin(environment: Mapping[str, str]) -> list[Check]:
    """Check that a plugin that the user has set gets the calls that drumline's gets."""
    name = environment.get(CHAIN) or environment.get(PLUGIN) or "none"
    if name.lower() == "none" or name == library.path():
        return []
    if "STATIC_PLUGIN".startswith(name.upper()):  # as NCCL
        return [Check(PLUGIN, OK, f"{name}: what is linked into the job gets every call too; it is not loaded to see")]
    errors = []
    for candidate in (name, f"libnccl-profiler-{name}.so"):  # as NCCL
        try:
            versions = _versions(ctypes.CDLL(candidate))
        except OSError as error:
            errors.append(str(error))
            continue
        if versions:
            return [Check(PLUGIN, OK, f"{candidate}: gets every call too, interfaces {_text(versions)}")]
        return [Check(PLUGIN, WARN, f"{candidate} is no profiler of NCCL: it is passed over", f"unset {PLUGIN}")]
    fix = f"a path or LD_LIBRARY_PATH where it is, or unset {PLUGIN}"
    return [Check(PLUGIN, WARN, f"{name} cannot be loaded, drumline runs without it: {errors[0]}", fix)]


def rings(folder: Path) -> Check:
    """Check the folder of the rings, and what the living processes lost."""
    try:
        paths = sorted(folder.glob(f"*{SUFFIX}"))
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        return Check("rings", FAIL, f"{folder}: {error.strerror}", f"chmod 1777 {folder}, or remove it")
    both = [_header(path) for path in paths]
    headers, ended = (
        [header for header, alive in both if alive],
        sum(header != () and not alive for header, alive in both),
    )
    waiting = f"{ended} processes have ended, and nothing has published their rings"
    publish = "drumline agent must run on this host"
    if not headers:
        text = f"{folder}: no process writes there now"
        return Check("rings", WARN, f"{text}; {waiting}", publish) if ended else Check("rings", OK, text)
    interfaces = sorted({header[HeaderField.INTERFACE] for header in headers})
    text = f"{folder}: {len(headers)} processes write, NCCL's interface {', '.join(map(str, interfaces))} (0: none yet)"
    dropped = sum(header[HeaderField.DROPPED] for header in headers)
    if dropped:
        fix = f"{publish}; a larger DRUMLINE_RINGS__RECORDS bridges more"
        return Check("rings", WARN, f"{text}; {dropped:,} operations met a full ring", fix)
    if any(0 < interface < library.TIMED_INTERFACE for interface in interfaces):
        return Check("rings", WARN, f"{text}: below {library.TIMED_INTERFACE} it has no GPU times", USE_CUPTI)
    if ended:
        return Check("rings", WARN, f"{text}; {waiting}", publish)
    return Check("rings", OK, text)


def _header(path: Path) -> tuple[tuple[int, ...], bool]:
    """Return the numbers of a ring's header and whether a process holds it; () for another file."""
    alive = True
    with suppress(OSError):
        descriptor = open_plain(path)
        try:
            data = os.pread(descriptor, HEADER_BYTES, 0)
            numbers = tuple(memoryview(data)[: 8 * len(HeaderField)].cast("Q")) if len(data) == HEADER_BYTES else ()
            if numbers and numbers[HeaderField.MAGIC] == MAGIC and numbers[HeaderField.VERSION] == LAYOUT:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    alive = False
                return numbers, alive
        finally:
            os.close(descriptor)
    return (), False


def _versions(plugin: ctypes.CDLL) -> list[int]:
    return [version for version in range(1, 10) if hasattr(plugin, f"ncclProfiler_v{version}")]


def _text(versions: list[int]) -> str:
    return ", ".join(f"v{version}" for version in versions)
