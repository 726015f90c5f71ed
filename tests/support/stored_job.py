"""A small job written straight into the tables, for report, top, explain and the web page."""

from datetime import UTC, datetime, timedelta

from drumline.infra.clickhouse.client import command, connect

JOB = "a <b>job</b>"
START = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(
    hours=1
)  # what is older than retention goes at once


def store(settings):
    """Two ranks, 40 steps, four windows: rank 1 is named in the last two."""
    client = connect(settings, database=settings.clickhouse.database)
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC')"
    keys = f"'{JOB}' AS job, 'r1' AS run"
    for sql in (
        f"INSERT INTO ledger (topic, published, disposition, job, run, rank, host, rows, time_min, time_max) SELECT "
        f"'gpu.step.v1', {at}, 'stored', '{JOB}', 'r1', number, 'h', 40, {at}, {at} + 40 FROM numbers(2)",
        f"INSERT INTO ledger (topic, published, disposition, job, run, rows) VALUES "
        f"('gpu.lateness.v1', now64(3), 'stored', '{JOB}', 'r1', 1)",
        f"INSERT INTO steps (job, run, rank, step, start, duration_ns, gpu_start, gpu_duration_ns, steps_from) SELECT "
        f"'{JOB}', 'r1', intDiv(number, 40), number % 40, {at} + number % 40, 1000000000, {at}, 1000000000, 'marker' "
        "FROM numbers(80)",
        f"INSERT INTO lateness_versions (job, run, rank, step, communicator, collectives, lateness_ns, published) "
        f"SELECT {keys}, 1, number, 'c', 1, 60000000 + (number = 27), {at} FROM numbers(20, 20)",
        f"INSERT INTO stragglers_versions (job, run, first_step, last_step, window_start, window_end, published, "
        "steps_used, step_ns, rank, host, severity, state, cause, lost_ns, lost_share, lateness_ns, "
        "gpu_seconds_lost, episode_first_step, confidence, evidence_json) WITH intDiv(number, 3) AS w, "
        f"number % 3 - 1 AS r, r = 1 AND w >= 2 AS late SELECT "
        f"{keys}, 10 * w, 10 * w + 9, {at} + 10 * w, {at} + 10 * w + 10, {at}, 10, "
        "1000000000, r, 'h', if(late, 3, 0), if(NOT late, 'ok', if(w = 2, 'suspect', 'warning')), "
        "if(late, 'slow_copy', 'ok'), late * 500000000, late * 0.05, "
        "late * 600000000, late * 0.5, "
        "if(late, 20, -1), 'high', '{}' FROM numbers(12)",
        f"INSERT INTO processes_versions (job, run, rank, process_id, labels, published) SELECT {keys}, number, "
        f"toString(number), map('team', 'vision', 'user', 'a&b'), {at} FROM numbers(2)",
        f"INSERT INTO kernels (job, run, rank, name, start, duration_ns) SELECT {keys}, number % 2, 'k', "
        f"{at} + number, 250000000 FROM numbers(40)",
        "INSERT INTO kernel_names_versions (name, short, family) VALUES ('k', 'kernel', 'gemm')",
        f"INSERT INTO memcpys (job, run, rank, kind, src_kind, dst_kind, bytes, start, duration_ns) SELECT {keys}, "
        f"number % 2, 1, 1, 3, 500000000, {at} + number, 100000000 FROM numbers(40)",
        f"INSERT INTO device_samples (job, run, rank, host, gpu_index, time, util_gpu) SELECT {keys}, number % 2, 'h', "
        f"number % 2, {at} + number, 90 FROM numbers(40)",
    ):
        command(client, sql)
    client.close()
