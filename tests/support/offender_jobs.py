"""A recorded job as 20 jobs on GPUs of their own, but for rank 3, which is always on the same bad one."""

from __future__ import annotations

from functools import cache

from support.grafana_stack import Stored, stored

from drumline.infra.config.settings import Settings

JOBS = 20
BAD_GPU, BAD_HOST = "GPU-bad", "node-bad"


def offender_jobs(stack: Settings) -> Stored:
    """Return the database with these jobs, made once per session.

    In each, rank 3 is late for its clock; in three of them another rank is late once, for its clock or by its code.
    """
    return _stored_jobs(stack.model_dump_json())


@cache
def _stored_jobs(settings_json: str) -> Stored:
    jobs = stored(Settings.model_validate_json(settings_json), "gpu_offenders")
    place = {
        "gpu_uuid": f"if(rank = 3, '{BAD_GPU}', concat(gpu_uuid, '-', toString(n)))",
        "host": f"if(rank = 3, '{BAD_HOST}', concat('h', toString(n)))",
    }
    slow = {"cause": "'slow_compute'", "detail": "'throttled'"}
    code = {"cause": "'host_stall'", "detail": "'garbage_collection'"}
    jobs.repeat("processes_versions", JOBS, **place)
    jobs.repeat("stragglers_versions", JOBS, "rank = 3 OR rank = 2 AND n < 2", **place, **slow)
    jobs.repeat("stragglers_versions", JOBS, "rank = 1 AND n = 2", **place, **code)
    return jobs
