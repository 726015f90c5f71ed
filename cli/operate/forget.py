"""`drumline forget`: delete one job's data everywhere."""

from __future__ import annotations

import difflib
import json
import shlex
import socket
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, OK, UNDECIDED
from drumline.infra.runtime.nearest import did_you_mean
from drumline.infra.runtime.terminal import echo, escape_controls

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.producers.rollup.forget import HostFiles
    from drumline.sinks.forget.forget import Forgetting, Forgotten

app = typer.Typer(add_completion=False)
#: Time for sinks and stream workers to take in what Kafka has; s.
WAIT_S = 60.0


@app.command()
def forget(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name, not a pattern.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete it; otherwise it is only listed.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Also while it runs; rows that follow stay.")] = False,
    this_host: Annotated[
        bool, typer.Option("--this-host", help="Only the spool and the kept rows of this host.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Delete all data of one job: rows, rollups, Kafka's records and keys, state of stream workers, spool, kept rows.

    Without --yes it lists what there is, and changes nothing. The sinks have to run, since what waits in Kafka is first
    stored. The ledger keeps each record's place as `forgotten`, without a name of the job. So no sink takes it for a
    new one, and the audit is as clean as before, once the sinks have read the deleted keys. `forgotten_jobs` has who
    deleted what, and when. A repetition deletes what has come since.

    What stays. Kafka deletes from the beginning of a partition only: records behind those of other jobs stay until the
    retention of their topic. Deleted keys and state go from the disk when Kafka compacts their topics. On the other
    hosts of the job run it with --this-host. An archive of the agents, backups, files that people wrote, and names of
    kernels stay.

    Exit codes: 0 listed, deleted, or nothing is left. 1 a stream worker has yet to forget it, or a process still writes
    its spool. 2 no such job, or it runs. 10 undecided: Kafka or ClickHouse does not answer, or records wait for a sink.
    """
    config = settings()
    _require_name(job)
    host_files = _host_files(config, job)
    if this_host:
        if yes:
            with exit_on_error("forget", OSError):
                host_files.delete()
        _print(None, host_files, yes, as_json)
        raise typer.Exit(FAILED if host_files.running else OK)
    matched = _of_platform(config, job, yes, running, bool(host_files.spools or host_files.kept))
    if yes:
        with exit_on_error("forget", OSError):
            host_files.delete()
    _print(matched, host_files, yes, as_json)
    raise typer.Exit(FAILED if matched.state_left or (yes and host_files.running) else OK)


def _require_name(job: str) -> None:
    """End without a name: rows and spools of hosts have an empty one, and belong to every job. Raises typer.Exit."""
    from drumline.infra.kafka.forget_tick import forget_value

    try:
        forget_value(job)
    except ValueError as error:
        exit_with("forget", BAD_INPUT, f"{error}; `drumline sql jobs` lists the jobs")


def _host_files(config: Settings, job: str) -> HostFiles:
    from drumline.producers.identity import host_name
    from drumline.producers.rollup.forget import files_of_job

    return files_of_job(config.spool.root, config.agent.kept_folder, host_name(config.host), job)


def _of_platform(config: Settings, job: str, yes: bool, running: bool, has_files: bool) -> Forgotten:
    """Find or delete the job in Kafka and ClickHouse. Raises typer.Exit."""
    from confluent_kafka import KafkaException

    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows, with_hint
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.kafka.connect import BrokerUnreachable, require_listener
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.sinks.audit.kafka_side import KafkaUnreachable
    from drumline.sinks.forget.forget import Forgetting, NotStored
    from drumline.sinks.forget.job_records import ForgettableRecords
    from drumline.sinks.forget.stored_rows import ForgettableRows
    from drumline.streams.core.records import job_of_key
    from drumline.views.control.control_topic import user_name

    try:
        require_listener(config)
        with ExitStack() as opened:
            opened.enter_context(ensure_engine(config))
            replicas = of_each(config)
            clients = {name: connect(replica, timeout_s=3_600) for name, replica in replicas.items()}
            database = config.clickhouse.database
            tables = {name: ForgettableRows(client, database, job) for name, client in clients.items()}
            topics = opened.enter_context(closing(ForgettableRecords(config)))
            forgetting = Forgetting(job, tables, replicas, topics, job_of_key)
            known = rows(next(iter(clients.values())), f"SELECT DISTINCT job FROM {database}.jobs")
            earlier = rows(
                next(iter(clients.values())),
                f"SELECT 1 FROM {database}.forgotten_jobs WHERE job = {{job:String}} LIMIT 1",
                {"job": job},
            )
            _check(config, forgetting, job, [str(row["job"]) for row in known], bool(earlier) or has_files, running)
            if not yes:
                return forgetting.find()
            shown = escape_controls(job)
            echo(
                f"drumline forget: waits for sinks to store what Kafka has, and for stream workers to forget {shown}; "
                f"{WAIT_S:.0f} s each at most",
                err=True,
            )
            forgotten = forgetting.delete(f"{user_name()}@{socket.gethostname()}", WAIT_S)
            forgotten.keys["requests"] = _clear_requests(config, job)
            return forgotten
    except NotStored as error:
        exit_with("forget", UNDECIDED, str(error))
    except (ClickHouseFailed, KafkaUnreachable, BrokerUnreachable, NoSuchTopic, StackError, KafkaException) as error:
        exit_with("forget", UNDECIDED, f"cannot decide: {with_hint(error)}")


def _check(config: Settings, forgetting: Forgetting, job: str, known: list[str], is_known: bool, running: bool) -> None:
    """End where there is no such job, or it runs. Raises typer.Exit."""
    from drumline.schemas.control import exact
    from drumline.views.control.reach import running_jobs

    if job not in known and not is_known and forgetting.find().is_empty:
        close = difflib.get_close_matches(job, known, n=2)
        hint = did_you_mean(close) or "`drumline sql jobs` lists the jobs"
        exit_with("forget", BAD_INPUT, f"nothing is stored of a job {job!r}; {escape_controls(hint)}")
    reported = running_jobs(config, exact(job))
    if reported and not running:
        exit_with(
            "forget", BAD_INPUT,
            f"{job} runs: {reported[job]} ranks reported within a minute, and what they send would stay; stop it, "
            "or give --running",
        )  # fmt: skip


def _clear_requests(config: Settings, job: str) -> int:
    """Clear the policies and windows that name the job; return their number."""
    from drumline.schemas.control import exact
    from drumline.views.control.control_topic import in_force, write

    keys = [control.key for control in in_force(config) if control.job == exact(job)]
    if keys:
        write(config, [(key, None) for key in keys])
    return len(keys)


def _print(matched: Forgotten | None, host_files: HostFiles, yes: bool, as_json: bool) -> None:
    """Print what there is, or was deleted."""
    counts = {
        "spools": len(host_files.spools),
        "kept_rows_of_processes": len(host_files.kept),
        "bytes": host_files.bytes,
        "running": len(host_files.running),
    }
    if as_json:
        echo(json.dumps({**(matched.as_json() if matched else {}), "this_host": counts, "deleted": yes}))
        return
    done = "deleted" if yes else "would be deleted"
    for name, stored in matched.stored.items() if matched else ():
        of = f" of replica {name}" if matched and len(matched.stored) > 1 else ""
        for table, number in stored.rows.items():
            echo(f"{table:<28} {number:>14,} rows{of} {done}")
        for topic, number in stored.records.items():
            echo(f"{topic:<28} {number:>14,} records{of} {'are' if yes else 'would be'} forgotten in the ledger")
    for kind, number in matched.keys.items() if matched else ():
        if number:
            echo(f"{'keys of ' + kind:<28} {number:>14,} {done}")
    for topic, number in matched.deleted.items() if matched else ():
        echo(f"{topic:<28} {number:>14,} records deleted from Kafka")
    for topic, number in matched.left.items() if matched else ():
        echo(f"{topic:<28} {number:>14,} records stay in Kafka until its retention: older ones are other jobs'")
    for kind in ("spools", "kept_rows_of_processes"):
        if counts[kind]:
            echo(f"{kind.replace('_', ' '):<28} {counts[kind]:>14,} of this host {done}")
    if counts["running"]:
        echo(f"{'spools':<28} {counts['running']:>14,} of this host stay: their processes run")
    if matched is not None and matched.is_empty and not matched.deleted:
        echo("nothing of it is left in Kafka and ClickHouse" if yes else "nothing of it is in ClickHouse")
    if matched is not None and matched.state_left:
        echo("the stream workers have not forgotten it yet: start them, and repeat this to see it")
    if matched is not None and matched.hosts:
        name = escape_controls(shlex.quote(matched.job))
        echo(f"on {', '.join(map(escape_controls, matched.hosts))}: drumline forget {name} --this-host --yes")
    if not yes:
        echo("nothing was changed: --yes deletes it")
