"""Environment of a recorded command: its Python processes find the start-up hook. Used by `drumline run`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.infra.runtime import spool_defaults
from drumline.producers.identity import JOB, JOB_NAMES, LABELS, LATE, MINTED_RUN, OF_LATE, RUN, first_set
from drumline.producers.ipc.buffer_pool import MIN_BUFFER_MB
from drumline.producers.ipc.policy import DEFAULT, BadPolicy, Policy, parse
from drumline.producers.nccl_profiler import library
from drumline.producers.nccl_profiler.library import FOLDER_VARIABLE

HOOK = Path(__file__).parent / "collector" / "startup"
#: Lowest values of numbers that the decoders, which start later, could not report before the job runs.
LOWEST: dict[str, float] = {
    "DRUMLINE_SPOOL__MAX_MB": spool_defaults.LOWEST_MAX_MB,
    "DRUMLINE_COLLECT__BUFFER_MB": MIN_BUFFER_MB,
}
#: NCCL's variable for a profiler plugin, and what NCCL looks for where it is not set.
PLUGIN, DEFAULT_PLUGIN = "NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"
#: The user's plugin, for drumline's own, which passes every call on.
CHAIN = "DRUMLINE_RINGS__CHAIN"


class BadLaunch(ValueError):
    """Options of `drumline run` that are not possible; the message names the option."""


@dataclass(frozen=True)
class LaunchOptions:
    """Options of `drumline run`; an empty one leaves the inherited environment as it is. `labels`: KEY=VALUE."""

    job: str = ""
    run: str = ""
    policy: str = ""
    spool: str = ""
    labels: Sequence[str] = ()
    quiet: bool = False


def environment(
    inherited: Mapping[str, str], command: Sequence[str], options: LaunchOptions = LaunchOptions()
) -> dict[str, str]:
    """Return `inherited` with the variables that the hook and the decoder need. Raises BadLaunch."""
    if LATE in inherited:  # below a process that waits for a policy
        inherited = {name: text for name, text in inherited.items() if name not in OF_LATE}
    result = dict(inherited)
    before = inherited.get("PYTHONPATH", "")
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOK), before]))
    result["DRUMLINE_PYTHON"] = sys.executable  # the decoder runs where drumline's own packages are
    result["DRUMLINE_PACKAGES"] = before
    result.pop("DRUMLINE_ATTACH", None)
    result[MINTED_RUN] = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    try:
        policy = parse(options.policy or inherited.get("DRUMLINE_COLLECT__POLICY") or DEFAULT)
        result["DRUMLINE_COLLECT__POLICY"] = str(policy)
    except BadPolicy as error:
        if options.policy:
            raise BadLaunch(str(error)) from None
        policy = parse("off")  # an inherited one keeps no job from running; the processes report it
    for name in misfits(inherited).keys() & LOWEST.keys():
        if "COLLECT" in name or _at_least(0, inherited[name]):  # the decoder reports what is no number
            del result[name]
    for label in options.labels:
        if label.find("=") < 1 or "," in label:
            raise BadLaunch(f"--label {label}: KEY=VALUE, without commas")
    if options.labels:
        known = [inherited[LABELS]] if inherited.get(LABELS) else []
        result[LABELS] = ",".join([*known, *options.labels])
    job = options.job
    if not job and not first_set(inherited, JOB_NAMES):
        job = script_name(command)
    for name, value in (
        (JOB, job),
        (RUN, options.run),
        ("DRUMLINE_SPOOL__ROOT", options.spool),
    ):
        if value:
            result[name] = os.path.abspath(value) if name.endswith("ROOT") else value
    if options.quiet:
        result["DRUMLINE_QUIET"] = "1"
    return load_plugin(result, policy)


def load_plugin(environment: Mapping[str, str], policy: Policy) -> dict[str, str]:
    """Return variables that make NCCL load drumline's plugin, and that one the user's; without a ring, the user's only.

    NCCL loads one plugin. The user's may be linked into the job (STATIC_PLUGIN): drumline's looks for it there.
    """
    result, plugin = dict(environment), library.path()
    if plugin and result.get(PLUGIN) == plugin:  # below another `drumline run`
        result[PLUGIN] = result.pop(CHAIN, "none")
        result.pop(FOLDER_VARIABLE, None)
    users = result.get(PLUGIN) or DEFAULT_PLUGIN
    if policy.uses_ring and plugin:
        root = os.path.abspath(result.get("DRUMLINE_SPOOL__ROOT") or spool_defaults.ROOT)
        folder = os.path.join(root, spool_defaults.RINGS)
        result |= {
            PLUGIN: plugin,
            FOLDER_VARIABLE: folder,
            "DRUMLINE_SPOOL__ROOT": root,
        }  # the root has the control file
        if users.lower() != "none":
            result[CHAIN] = users
    return result


def misfits(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with an unusable value, and what follows for each.

    They may be set for a whole cluster, or for a later release: none keeps a job from running.
    """
    consequences = {}
    for name, lowest in LOWEST.items():
        if not _at_least(lowest, inherited.get(name) or str(lowest)):
            consequences[name] = f"{inherited[name]!r}: a number is needed, at least {lowest:g}; the default is taken"
    try:
        parse(inherited.get("DRUMLINE_COLLECT__POLICY") or DEFAULT)
    except BadPolicy as error:
        consequences["DRUMLINE_COLLECT__POLICY"] = f"{error}; nothing will be recorded unless --policy is given"
    return consequences


def _at_least(lowest: float, text: str) -> bool:
    try:
        return lowest <= float(text) < float("inf")
    except ValueError:
        return False


def without_rings(variables: Mapping[str, str]) -> str:
    """Return why NCCL's operations are not recorded though the policy needs them, and a remedy; "" if they are."""
    if variables.get("DRUMLINE_COLLECT__POLICY") not in ("light", "auto", "counts"):
        return ""
    if library.path() is None:
        return "NCCL's plugin was not built: install a C compiler and drumline again, or --policy always"
    folder = Path(variables[FOLDER_VARIABLE])
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return f"{folder} is no folder: remove it"
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} may not be written: chmod 1777 {folder}"
    return ""


def unwritable(root: Path) -> str:
    """Return a sentence with the reason why jobs cannot write into a spool folder, and a remedy; "" if they can."""
    existing = root
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is no folder: name another one with --spool or DRUMLINE_SPOOL__ROOT"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} may not be written: mkdir -m 1777 {root}, or name another one with DRUMLINE_SPOOL__ROOT"
    return ""


def script_name(command: Sequence[str]) -> str:
    """Return a name for a command: its first .py file, else the module after -m, else the program."""
    for argument in command:
        if argument.endswith(".py"):
            return Path(argument).stem
    if "-m" in command[:-1]:
        return command[list(command).index("-m") + 1]
    return Path(command[0]).name
