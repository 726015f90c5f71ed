"""Whether all ranks of a training know the name of one run, else they are never compared. Pure, and runs inside the job
too: standard library only."""

from __future__ import annotations

from collections.abc import Mapping


def lonely(variables: Mapping[str, str]) -> bool:
    """Whether this is one rank of several, each of which would make up a run of its own (who.run_id): then ranks are
    never compared."""
    ranks = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
    return any(variables.get(name) for name in ranks) and not _named(variables)


def apart(variables: Mapping[str, str]) -> str:
    """Who has a run of its own although others belong to the same training: a "node" (torchrun on several of them
    without --rdzv-id), a "rank" (attached without `drumline run`), or "", nobody as far as one sees from inside."""
    world, here = (_count(variables.get(name, "")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world <= 1 or _named(variables):
        return ""
    if not variables.get("DRUMLINE_MINTED_RUN"):
        return "rank"
    return "node" if 0 < here < world else ""


def _named(variables: Mapping[str, str]) -> bool:
    """Whether something names the run that all its ranks share."""
    names = ("DRUMLINE_RUN", "SLURM_JOB_ID", "PMIX_NAMESPACE")
    return variables.get("TORCHELASTIC_RUN_ID", "none") != "none" or any(variables.get(name) for name in names)


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
