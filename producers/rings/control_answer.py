"""Answer of a process that is recorded by NCCL alone, to what is asked of it: the agent knows whether it can follow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from drumline.producers.identity import Identity
from drumline.producers.ipc.control import ProcessPlace, chosen, read_requests
from drumline.producers.ipc.policy import LIGHT, parse, read_policy_text


def control_answer(root: Path, process: Identity, environment: Mapping[str, str]) -> str:
    """Return "accepted KEY" or "rejected KEY: REASON", "" where nothing is asked. `root`: of the spool.

    Once CUPTI is in the process its decoder answers, under another process id.
    """
    with suppress(OSError, ValueError):
        place = ProcessPlace(process.job, process.run, process.rank, process.host)
        request = chosen(read_requests(root), place, time.time_ns())
        if request is None:
            return ""
        if read_policy_text(root / "policy"):
            return f"rejected {request.key}: the policy file of its host is in force"
        if parse(environment.get("DRUMLINE_COLLECT__POLICY") or "auto").mode == LIGHT:
            return f"rejected {request.key}: its policy is light, which never attaches CUPTI"
        return f"accepted {request.key}"
    return ""
