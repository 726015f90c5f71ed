"""Checks of a host's spool for `drumline doctor`, and its losses."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from glob import glob
from pathlib import Path

from drumline.producers.agent.cursor import is_served
from drumline.producers.doctor.checks import FAIL, OK, WARN, Check
from drumline.producers.ipc.control import FILE
from drumline.producers.ipc.plain_file import untrusted
from drumline.producers.ipc.policy import BadPolicy, parse, read_policy_text
from drumline.producers.launcher import unwritable
from drumline.producers.spool.folder_layout import AGENT_FOLDER, OPEN, TAKEN, BadSpool, segment_name
from drumline.producers.spool.quota import bounds
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.root import folders
from drumline.producers.spool.segment_format import LOSS, Frame

#: A segment of losses is smaller; bytes.
MOST_LOSSES = 1 << 20


def spool(root: Path, host_bytes: int) -> Check:
    """Check that jobs can write, how full the spool is, that an agent serves it, and that nothing was lost."""
    if reason := unwritable(root):
        return Check("spool", FAIL, *reason.split(": ", 1))
    existing = root
    while not existing.exists():
        existing = existing.parent
    most, spare = bounds(existing, host_bytes)
    waiting = sum(_sizes(root))
    text = f"{root}: {waiting / 1e6:.0f} of at most {most / 1e6:.0f} MB waiting"
    if lost := _lost(root):
        text += f", {lost:,} rows were evicted and will be counted as dropped"
    unserved = waiting > 0 and not is_served(root)
    if unserved:
        text += ", and no agent serves it"
    if spare < 0:
        fix = "free some space: with less than a quarter of the file system (4 GiB at most) free, nothing is written"
        return Check("spool", WARN, f"{text}; other files fill its file system", fix)
    if rights := unsafe(root):
        return Check("spool", WARN, f"{text}; {rights[0]}", rights[1])
    if unserved:
        fix = "drumline agent: until it has published them, segments stay, also of processes that ended"
        return Check("spool", WARN, text, fix)
    if lost:
        fix = "the log and /readyz of drumline agent give the reason; a larger DRUMLINE_SPOOL__MAX_MB bridges more"
        return Check("spool", WARN, text, fix)
    return Check("spool", OK, text)


def unsafe(root: Path) -> tuple[str, str] | None:
    """Return why users may harm each other in a root, or why its agent cannot serve all of them, and a remedy.

    The user of the agent is known from its folder.
    """
    try:
        about = root.stat()
        agent = (root / AGENT_FOLDER).lstat().st_uid if os.path.lexists(root / AGENT_FOLDER) else about.st_uid
        users = {folder.path.lstat().st_uid for folder in folders(root)}
    except OSError:  # no root yet, or removed since
        return None
    fix = f"as root: chown USER:GROUP of the agent {root}; chmod 3777 {root}"
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        return "its folder is not sticky: every user may delete and replace the spools of others", f"chmod +t {root}"
    if about.st_uid not in (0, agent):
        return f"its folder belongs to user {about.st_uid}, who may delete and replace the spools of others", fix
    if agent and users - {agent} and (about.st_uid != agent or not about.st_mode & stat.S_ISGID):
        return f"its agent, user {agent}, can publish its own user's spools only", fix
    return None


def _sizes(root: Path) -> Iterator[int]:
    """Yield the bytes of each segment; segments come and go."""
    for kind in (OPEN, TAKEN):
        for name in glob(f"*/*{kind}", root_dir=root):
            with suppress(OSError):
                yield (root / name).stat().st_size


def _lost(root: Path) -> int:
    """Return the evicted rows that are not published as lost yet, as far as the oldest segment of each folder holds
    them.
    """
    rows = 0
    with suppress(OSError):
        for folder in folders(root):
            with suppress(OSError, BadSpool):  # another user's, or removed since
                for number in folder.files()[OPEN][:1]:
                    with closing(Segment(folder, segment_name(number))) as segment:
                        frames = segment.read(complete=True) if segment.size < MOST_LOSSES else []
                        rows += sum(frame.rows for frame in frames if isinstance(frame, Frame) and frame.kind == LOSS)
    return rows


def policy(root: Path) -> list[Check]:
    """Check the policy file, if there is one."""
    if reason := untrusted(root / "policy", root / FILE):
        return [Check("policy", WARN, reason, "remove it, or set DRUMLINE_SPOOL__AGENT_USER where jobs run")]
    try:
        text = read_policy_text(root / "policy")
        return [Check("policy", OK, f"{root / 'policy'}: {parse(text)}")] if text else []
    except BadPolicy as error:
        return [Check("policy", FAIL, f"{root / 'policy'}: {error}; jobs keep the one they have", "write one of these")]
    except OSError as error:
        return [Check("policy", FAIL, str(error), "jobs cannot read it either: chmod a+r, or remove it")]
