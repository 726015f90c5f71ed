"""Hosts that take part in a check of pairs: from a list, from Slurm, or from torchrun."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from drumline.producers.identity import SLURM_JOB, SLURM_NODE, TORCHRUN_RUN, rank_and_size

#: Hosts of a step, else of a job; Slurm's prolog has the second.
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
#: Begin of a host's name where only ranks are known.
RANK_HOST = "host of rank"
_BRACKETS = re.compile(r"^([^\[]*)\[([^\]]*)\](.*)$")


@dataclass(frozen=True, slots=True)
class Roster:
    """Holds who takes part. `names`: of all hosts, the same order on each; `index`: of this one.

    `coordinator`: name or address of the first one, at which the others register. `job`: id of Slurm's job or of
    torchrun's run, alike on all; "" = none.
    """

    names: tuple[str, ...]
    index: int
    coordinator: str
    job: str = ""


def expand_nodes(text: str) -> list[str]:
    """Return the hosts of Slurm's list, such as `gpu[01-03,7],login`. Raises ValueError."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    return [name for part in parts for name in _expand(part.strip())]


def _expand(part: str) -> list[str]:
    matched = _BRACKETS.match(part)
    if not matched:
        return [part]
    before, inside, after = matched.groups()
    rest, names = _expand(after), list[str]()
    for item in inside.split(","):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part}: not a list of hosts of Slurm")
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{before}{number:0{len(first)}d}{end}" for number in numbers for end in rest]
    return names


def find_roster(
    environment: Mapping[str, str], hosts: Sequence[str], this_host: str, is_local: Callable[[str], bool]
) -> Roster:
    """Return who takes part: `hosts`, else Slurm's, else torchrun's. Raises ValueError where neither is known.

    `this_host`: its name. `is_local`: whether a name or address is this host's.
    """
    listed = next((environment[name] for name in _NODE_LISTS if environment.get(name)), "")
    names = list(dict.fromkeys(hosts or (expand_nodes(listed) if listed else ())))
    if not names:
        return _of_torchrun(environment)
    wanted = {this_host, environment.get(SLURM_NODE, "")} - {""}
    for matches in (wanted.__contains__, lambda name: _short(name) in map(_short, wanted), is_local):
        if places := [place for place, name in enumerate(names) if matches(name)]:
            return Roster(tuple(names), places[0], names[0], _job(environment))
    raise ValueError(f"{this_host} is none of the hosts {', '.join(names[:8])}; --hosts takes names as hostname prints")


def _of_torchrun(environment: Mapping[str, str]) -> Roster:
    coordinator, known = environment.get("MASTER_ADDR", ""), rank_and_size(environment)
    if not coordinator or known is None:
        raise ValueError("no hosts are known; start it by srun or torchrun on all, or give --hosts a,b,c")
    rank, size = known
    local = environment.get("LOCAL_WORLD_SIZE", "1")
    processes = max(int(local) if local.isdecimal() else 1, 1)
    names = tuple(f"{RANK_HOST} {first}" for first in range(0, size, processes))
    return Roster(names, rank // processes, coordinator, _job(environment))


def _job(environment: Mapping[str, str]) -> str:
    return environment.get(SLURM_JOB) or environment.get(TORCHRUN_RUN, "")


def _short(name: str) -> str:
    return name if name.replace(".", "").isdecimal() else name.partition(".")[0]
