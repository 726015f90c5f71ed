"""Alert rules on GPUs."""

from __future__ import annotations

from drumline.infra.grafana.alerts.rule import Group, Rule, Values, limited, with_owner
from drumline.infra.grafana.limits import IDLE as IDLE_LIMIT
from drumline.infra.grafana.limits import THROTTLED as THROTTLED_LIMIT
from drumline.infra.grafana.liveness import places
from drumline.infra.grafana.thresholds import (
    IDLE_MINUTES,
    IDLE_PERCENT,
    THROTTLED_MINUTES,
    THROTTLED_OF,
)
from drumline.infra.guidance.entry import HOST
from drumline.schemas.counters import CLOCK_FAULT_BITS, CLOCK_FAULTS

_NAMES = ", ".join(f"if(bitAnd(bits, {bit}) != 0, '{name}', '')" for bit, name in CLOCK_FAULTS.items())
_REASONS_TEXT = f"arrayStringConcat(arrayFilter(x -> x != '', [{_NAMES}]), ' + ')"
_GPU = "job, host, toString(gpu_index) AS gpu, gpu_uuid"
_BY = "job, host, gpu_index, gpu_uuid"
_PLACE = "host, gpu_index, gpu_uuid"
_SELECTS = {"job": "job", "host": "host"}


def _of_job(text: str, ref: str = "A") -> Values:
    """Return values with the owners of the job; samples of GPUs have no run."""
    return with_owner(text, keys="job", ref=ref)


def _placed(text: str, ref: str = "PLACE") -> Values:
    """Return values with the pod, or Slurm job, of the job's newest process on the GPU.

    It is no label of the alert: the job's next pod may come while that lasts.
    """
    return _of_job(
        f"""
        SELECT whole.*, if(places.pod = '', 'none', places.pod) AS pod FROM ({text}) AS whole
        LEFT JOIN ({places("job, host, gpu_uuid")}) AS places USING (job, host, gpu_uuid)
        """,
        ref,
    )


def _identity(ref: str = "PLACE") -> str:
    """Return a template of GPU, job and pod; `ref`: of the values with the pod."""
    pod = f"$values.{ref}.Labels.pod"
    place = f'{{{{ if ne {pod} "none" }}}}, pod or Slurm job {{{{ {pod} }}}}{{{{ end }}}}'
    return f"{{{{ $labels.gpu_uuid }}}}, job {{{{ $labels.job }}}}{place}"


def _throttled(texts: str = "") -> str:
    return f"""
    SELECT {_GPU}{texts}, minutes AS value FROM (
        SELECT {_BY}, groupBitOr(throttle_reasons) AS bits,
            toFloat64(uniqExactIf(minute, bitAnd(throttle_reasons, {CLOCK_FAULT_BITS}) != 0)) AS minutes
        FROM devices_per_minute WHERE @minute GROUP BY {_BY}
    )
    """


THROTTLED = Rule(
    "drumline-gpu-throttled", "GPU throttled", "warning",
    (
        limited(_throttled(), THROTTLED_LIMIT, keys="job"),
        _placed(_throttled(f", if(minutes > 0, {_REASONS_TEXT}, 'none') AS reasons"), "WHY"),
    ),
    "gt", (THROTTLED_MINUTES,), (THROTTLED_OF - 1) * 60,
    "GPU {{ $labels.gpu }} of {{ $labels.host }} is slowed down: {{ $values.WHY.Labels.reasons }}",
    _identity("WHY") + ": in {{ $values.WHY.Value }} of the last 5 minutes. The rank on it becomes a straggler.",
    "Look at clocks, power and temperature of the GPU, and at cooling and power supply of the host.",
    "Drain the host until they are well.",
    "Heat and power faults only; the power cap (0x4) is how a busy GPU runs, every recording shows it. More than two "
    "minutes of the last five: a moment's heat lies in two at most.",
    ("drumline-devices", "throttle"), _SELECTS, keep_s=300, job_limit=THROTTLED_LIMIT,
)  # fmt: skip
_XID = f"""
    SELECT {_GPU}, toString(number) AS xid, toFloat64(uniqExactIf(minute, number > 0)) AS value
    FROM devices_per_minute LEFT ARRAY JOIN xids AS number WHERE @minute GROUP BY {_BY}, number
    """
XID = Rule(
    "drumline-gpu-xid", "XID error", "critical",
    (_of_job(_XID), _placed(_XID)),
    "gt", (0.0,), 600,
    "GPU {{ $labels.gpu }} of {{ $labels.host }}: XID {{ $labels.xid }}",
    _identity() + ". 13, 31, 43, 45 come from the application, 48, 63, 64, 74, 79, 94, 95 from the hardware "
    "(docs.nvidia.com/deploy/xid-errors).",
    "Is the number the application's or the hardware's? `dmesg` of the host and the job's log have more.",
    "Hardware: drain the host and run its diagnosis. Application: correct the program.",
    "The driver reports an XID only when something failed; a job seldom survives it. Each number is an alert of its "
    "own: 79 and 119 come together. Ten minutes of range, so that one event is one alert.",
    ("drumline-devices", "xid"), _SELECTS,
)  # fmt: skip
_ECC = f"""
    SELECT {_GPU}, toFloat64(arraySum(arrayMap((now, before) -> if(now < before, now, now - before),
        arrayPopFront(counts), arrayPopBack(counts)))) AS value
    FROM (
        SELECT {_BY}, arrayMap(x -> x.2, arraySort(groupArray((minute, errors)))) AS counts FROM (
            SELECT {_BY}, minute, assumeNotNull(max(ecc_uncorrected)) AS errors
            FROM devices_per_minute WHERE @minute AND isNotNull(ecc_uncorrected) GROUP BY {_BY}, minute
        ) GROUP BY {_BY}
    )
    """
ECC = Rule(
    "drumline-gpu-ecc", "Uncorrected memory errors", "critical",
    (_of_job(_ECC), _placed(_ECC)),
    "gt", (0.0,), 900,
    "GPU {{ $labels.gpu }} of {{ $labels.host }}: {{ $values.A.Value }} uncorrected ECC errors",
    _identity() + ": in the last 15 minutes. Results may be wrong.",
    "Look at the GPU's own counters: `nvidia-smi -q -d ECC,ROW_REMAPPER`.",
    "Drain the host, reset the GPU, and have it replaced if it comes again. The job restarts from a checkpoint.",
    "The counter grew: one uncorrected error is data lost. Where it falls, the driver was loaded again and counts "
    "from 0.",
    ("drumline-devices", "ecc"), _SELECTS,
)  # fmt: skip
_IDLE = f"""
    SELECT {_GPU}, avgMerge(util_gpu) AS value FROM devices_per_minute
    WHERE @minute AND job != '' GROUP BY {_BY} HAVING uniqExact(minute) >= {IDLE_MINUTES - 5}
        AND isNotNull(value)
    """
IDLE = Rule(
    "drumline-gpu-idle", "GPU idle while allocated", "warning",
    (limited(_IDLE, IDLE_LIMIT, keys="job"), _placed(_IDLE, "VALUE")),
    "lt", (IDLE_PERCENT,), IDLE_MINUTES * 60,
    "{{ $labels.job }} holds GPU {{ $labels.gpu }} of {{ $labels.host }} and does not use it",
    _identity("VALUE") + ": utilisation {{ printf \"%.1f\" $values.VALUE.Value }}% over 15 minutes.",
    "Does the job still work? See its log, and its steps on the dashboard Job.",
    "Ask the job's owner whether it still needs the GPU, and end the job if not.",
    "5% over 15 minutes (with samples of 10 at least): start-up and checkpoints are shorter, and any training step "
    "shows more.",
    ("drumline-devices", "utilisation"), _SELECTS, for_s=300, job_limit=IDLE_LIMIT,
)  # fmt: skip

_LOST = f"""
    SELECT job, host, toString(gpu_index) AS gpu, gpu_uuid, toFloat64(state) AS value FROM (
        SELECT {_PLACE}, argMax(gone, minute) AS state, groupUniqArrayArray(hit) AS taken,
            argMax(jobs, minute) AS present
        FROM (
            SELECT {_PLACE}, minute, ifNull(max(lost), 0) AS gone, groupUniqArray(job) AS jobs,
                groupUniqArrayIf(job, job != '' AND d.lost > 0) AS hit
            FROM devices_per_minute AS d WHERE @minute AND ({_PLACE}) IN (
                SELECT {_PLACE} FROM devices_per_minute WHERE @minute AND lost > 0
            ) GROUP BY {_PLACE}, minute
        ) GROUP BY {_PLACE}
    ) ARRAY JOIN if(empty(taken), present, taken) AS job
    """
LOST = Rule(
    "drumline-gpu-lost", "GPU lost", "critical",
    (_of_job(_LOST), _placed(_LOST)),
    "gt", (0.0,), 86_400,
    "GPU {{ $labels.gpu }} of {{ $labels.host }} is lost",
    _identity() + ": it does not answer NVML any more. That job ran on it when it went.",
    "`nvidia-smi -L` on the host lists the GPUs that answer. `dmesg` has XID 79 where it fell off the bus, 119 or 154 "
    "where its firmware hangs.",
    "Drain the host and reboot it, with a power cycle if the GPU stays away. Have the GPU or its board replaced if it "
    "comes again. Restart the job without this host, from its checkpoint.",
    "A GPU that answered and does not any more is never right. A driver that is loaded again is away for less than "
    "20 s. The alert ends when the GPU answers; after a change of hardware restart the agent, which forgets it.",
    ("drumline-devices", "lost"), _SELECTS,
)  # fmt: skip

LOST_GPUS = Group("drumline-lost", 30, HOST, (LOST,))
DEVICES = Group("drumline-devices", 60, HOST, (THROTTLED, XID, ECC, IDLE))
