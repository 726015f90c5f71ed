"""The environment in which a command's Python processes find the start-up hook."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumline.producers.ipc.policy import BadPolicy, parse

SOURCE = Path(__file__).parent
HOOK = SOURCE / "collector" / "startup"
#: Numbers that decoders would meet too late. A spool of 4 MB has room for several of the largest batches.
LEAST = {"DRUMLINE_SPOOL__MAX_MB": 4.0, "DRUMLINE_SPOOL__SEGMENT_S": 0.1, "DRUMLINE_COLLECT__BUFFER_MB": 4.0}


class BadLaunch(ValueError):
    """Options that cannot be."""


def environment(
    inherited: Mapping[str, str],
    command: Sequence[str],
    *,
    job: str = "",
    run: str = "",
    policy: str = "",
    spool: str = "",
    labels: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, str]:
    """`inherited` with what the hook (collector/startup) and the decoder need. Raises BadLaunch."""
    result = dict(inherited)
    before = inherited.get("PYTHONPATH", "")
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOK), before]))
    result["DRUMLINE_PYTHON"] = sys.executable  # the decoder runs where drumline's own packages are
    result["DRUMLINE_PACKAGES"] = before
    result.pop("DRUMLINE_ATTACH", None)
    result["DRUMLINE_MINTED_RUN"] = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    if policy:
        try:
            result["DRUMLINE_COLLECT__POLICY"] = str(parse(policy))
        except BadPolicy as error:
            raise BadLaunch(str(error)) from None
    for name in misfits(inherited).keys() & LEAST.keys():
        if "COLLECT" in name or _at_least(0, inherited[name]):  # of what is no bound at all the decoder tells
            del result[name]
    for label in labels:
        if label.find("=") < 1 or "," in label:
            raise BadLaunch(f"--label {label}: KEY=VALUE, without commas")
    if labels:
        known = [inherited["DRUMLINE_LABELS"]] if inherited.get("DRUMLINE_LABELS") else []
        result["DRUMLINE_LABELS"] = ",".join([*known, *labels])
    if not job and not any(inherited.get(name) for name in ("DRUMLINE_JOB", "SLURM_JOB_NAME", "JOB_NAME")):
        job = script_name(command)
    for name, value in (("DRUMLINE_JOB", job), ("DRUMLINE_RUN", run), ("DRUMLINE_SPOOL__ROOT", spool)):
        if value:
            result[name] = os.path.abspath(value) if name.endswith("ROOT") else value
    if quiet:
        result["DRUMLINE_QUIET"] = "1"
    return result


def misfits(inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables whose values mean nothing, with what follows from that. They may be set for a whole cluster, or for a
    later release: none keeps a job from running."""
    found = {}
    for name, least in LEAST.items():
        if not _at_least(least, inherited.get(name) or str(least)):
            found[name] = f"{inherited[name]!r}: a number is needed, at least {least:g}; the default is taken"
    try:
        parse(inherited.get("DRUMLINE_COLLECT__POLICY") or "always")
    except BadPolicy as error:
        found["DRUMLINE_COLLECT__POLICY"] = f"{error}; nothing will be recorded unless --policy is given"
    return found


def _at_least(least: float, text: str) -> bool:
    try:
        return least <= float(text) < float("inf")
    except ValueError:
        return False


def unwritable(root: Path) -> str:
    """Why jobs cannot write into a spool, and what to do; "" = they can, as far as one sees before."""
    there = root
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder: name another one with --spool or DRUMLINE_SPOOL__ROOT"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written: mkdir -m 1777 {root}, or name another one with DRUMLINE_SPOOL__ROOT"
    return ""


def script_name(command: Sequence[str]) -> str:
    """What a command seems to run: the first .py file, else the module after -m, else the program."""
    for word in command:
        if word.endswith(".py"):
            return Path(word).stem
    if "-m" in command[:-1]:
        return command[list(command).index("-m") + 1]
    return Path(command[0]).name
