"""What must be right with a host's spool, and what has been lost in it: part of `drumline doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from glob import glob
from pathlib import Path

from drumline.producers.agent.cursor import is_served
from drumline.producers.doctor.checks import FAIL, OK, WARN, Check
from drumline.producers.ipc.policy import BadPolicy, parse, read_policy_text
from drumline.producers.launcher import unwritable
from drumline.producers.spool.directory import folders
from drumline.producers.spool.frames import LOSS, Frame
from drumline.producers.spool.layout import OPEN, TAKEN, BadSpool, segment_name
from drumline.producers.spool.quota import bounds
from drumline.producers.spool.reader import Segment

#: A segment of losses is smaller; bytes.
MOST_LOSSES = 1 << 20


def spool(root: Path, host_bytes: int) -> Check:
    """Whether jobs can write, how much lies there of what may, whether anybody takes it, and what is lost."""
    if why := unwritable(root):
        return Check("spool", FAIL, *why.split(": ", 1))
    there = root
    while not there.exists():
        there = there.parent
    most, spare = bounds(there, host_bytes)
    waiting = sum(_sizes(root))
    text = f"{root}: {waiting / 1e6:.0f} of at most {most / 1e6:.0f} MB waiting"
    if lost := _lost(root):
        text += f", {lost:,} rows had no room and will be told as lost"
    alone = waiting > 0 and not is_served(root)
    if alone:
        text += ", and no agent serves it"
    if spare < 0:
        fix = "make room: where less than a quarter of the file system (4 GiB at most) is free, nothing is written"
        return Check("spool", WARN, f"{text}; others fill its file system", fix)
    if alone:
        fix = "drumline agent: until it has published them, segments stay, also of processes that ended"
        return Check("spool", WARN, text, fix)
    if lost:
        fix = "drumline agent says in its log and /readyz what it waits for; DRUMLINE_SPOOL__MAX_MB bridges more"
        return Check("spool", WARN, text, fix)
    return Check("spool", OK, text)


def _sizes(root: Path) -> Iterator[int]:
    """Bytes of each segment; they come and go."""
    for kind in (OPEN, TAKEN):
        for name in glob(f"*/*{kind}", root_dir=root):
            with suppress(OSError):
                yield (root / name).stat().st_size


def _lost(root: Path) -> int:
    """Rows that were thrown away for new ones, as far as that waits to be told: in the oldest segment of a folder."""
    rows = 0
    with suppress(OSError):
        for folder in folders(root):
            with suppress(OSError, BadSpool):  # another user's, or gone since
                for number in folder.files()[OPEN][:1]:
                    with closing(Segment(folder.path / segment_name(number))) as segment:
                        found = segment.read(complete=True) if segment.size < MOST_LOSSES else []
                        rows += sum(frame.rows for frame in found if isinstance(frame, Frame) and frame.kind == LOSS)
    return rows


def policy(root: Path) -> list[Check]:
    """What the control file says, if there is one."""
    try:
        text = read_policy_text(root / "policy")
        return [Check("policy", OK, f"{root / 'policy'}: {parse(text)}")] if text else []
    except BadPolicy as error:
        return [Check("policy", FAIL, f"{root / 'policy'}: {error}; jobs keep the one they have", "write one of these")]
    except OSError as error:
        return [Check("policy", FAIL, str(error), "jobs cannot read it either: chmod a+r, or remove it")]
