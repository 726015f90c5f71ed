"""`drumline audit`: prove that nothing was lost or doubled."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.console import exit_with
from drumline.infra.config.clickhouse_settings import PRIMARY
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import FAILED, OK, UNDECIDED
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.sinks.audit.acknowledgements import Decision
    from drumline.sinks.audit.compare import ReplicaDifference
    from drumline.sinks.audit.report import AuditReport

app = typer.Typer(add_completion=False)
#: Rows that stay on the hosts (policy rollup).
KEPT = ("kernels", "in_windows", "copies", "ranges")


@app.command()
def audit(
    job: Annotated[str, typer.Option(help="Check rows, sequences and windows of this job only.")] = "",
    run: Annotated[str, typer.Option(help="Check this run only, or all attempts of this Slurm job.")] = "",
    compare: Annotated[
        bool, typer.Option("--compare", help="Also compare the rows of all replicas, by number and hash.")
    ] = False,
    acknowledge: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Of a finding that cannot be fixed: it does not count any more."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why nothing is left to do; needed to acknowledge.")] = "",
    withdraw: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Of an acknowledged finding: it counts again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Prove that no row was lost or doubled, from Kafka and from the tables.

    The ledger has each Kafka record once, except those that Kafka's retention removed. Each table has exactly the
    published rows. The batches of a process have no gap. Rows of non-overlapping windows plus counted late rows equal
    the raw rows. Rollups count each row once. Records that are not stored yet are "not drained", not lost. A job or run
    without stored rows is "unknown", not clean. Rows older than the retention of their table have "expired", and what
    comes so is not stored: both are counted, and no more is known of them. Rows that stay on their hosts (policy
    rollup) are counted, not missing.

    Each replica of DRUMLINE_CLICKHOUSE__REPLICAS is audited, against the commits of its own group. --compare reads all
    rows of each.

    --acknowledge keeps in ClickHouse who decided when and why that nothing is left to do about a finding, until
    --withdraw. It is shown, and the audit does not fail by it. A finding that states another number is another one,
    and counts. What may still pass (not drained, windows open, unknown) is not acknowledged.

    Run it while no sink writes: a range that has its rows and not yet its ledger entry looks doubled.

    Exit codes: 0 clean. 1 not clean; each finding is named. 2 no such finding. 10 undecided: Kafka or ClickHouse does
    not answer.
    """
    from drumline.sinks.audit.acknowledgements import Decision
    from drumline.views.control.control_topic import user_name

    if acknowledge and not reason.strip():
        raise typer.BadParameter("state why nothing is left to do", param_hint="--reason")
    by = f"{user_name()}@{socket.gethostname()}"
    decision = Decision(tuple(acknowledge or ()), tuple(withdraw or ()), reason.strip(), by)
    replicas = of_each(settings())
    answers = {name: _audit(config, job, run, decision) for name, config in replicas.items()}
    if unknown := sorted(set.intersection(*(missing for _, missing in answers.values()))):
        raise typer.BadParameter(f"there is no finding {', '.join(unknown)}", param_hint="--acknowledge, --withdraw")
    reports = {name: report for name, (report, _) in answers.items()}
    differing = _compare(replicas, job, run) if compare else []
    clean = all(report.clean for report in reports.values()) and not differing
    if as_json:
        more: dict[str, Any] = {"differences": [difference.as_json() for difference in differing]} if compare else {}
        if len(reports) > 1:
            more["replicas"] = {name: report.as_json() for name, report in reports.items()}
        echo(json.dumps({**reports[PRIMARY].as_json(), "clean": clean, **more}, default=str))
    else:
        for name, report in reports.items():
            if len(reports) > 1:
                echo(f"replica {name}, {replicas[name].clickhouse_url}, group {replicas[name].sink.group}")
            _print(report)
        for difference in differing:
            echo(f"replicas differ: {escape_controls(difference.text())}")
        if compare and not differing:
            echo(f"{len(reports)} replicas have equal rows")
    raise typer.Exit(OK if clean else FAILED)


def _compare(replicas: dict[str, Settings], job: str, run: str) -> list[ReplicaDifference]:
    """Return the differences of all replicas. Raises typer.Exit with UNDECIDED if one does not answer."""
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, with_hint
    from drumline.sinks.audit.compare import contents, differences

    compared, now_s = {}, time.time()
    for name, config in replicas.items():
        server = config.clickhouse
        try:
            compared[name] = contents(
                connect(config, timeout_s=600), server.database, server.retention, now_s, job, run
            )
        except ClickHouseFailed as error:
            exit_with("audit", UNDECIDED, f"cannot compare: {with_hint(error)}")
    return differences(compared)


def _audit(config: Settings, job: str, run: str, decision: Decision) -> tuple[AuditReport, set[str]]:
    """Return the report of one replica, after a decision, and the ids that it does not know.

    Raises typer.Exit with UNDECIDED if Kafka or ClickHouse does not answer, and typer.BadParameter.
    """
    from drumline.infra.kafka.connect import BrokerUnreachable, require_listener

    try:
        require_listener(config)  # before an engine is started for the audit
    except BrokerUnreachable as error:
        exit_with("audit", UNDECIDED, f"cannot decide: {error}")
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, with_hint
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.sinks.audit.acknowledgements import Acknowledgements, NotAcknowledgeable
    from drumline.sinks.audit.audit import audit as check
    from drumline.sinks.audit.kafka_side import KafkaFacts, KafkaUnreachable
    from drumline.sinks.audit.queries import Queries

    try:
        with ensure_engine(config):
            queries = Queries(connect(config, timeout_s=300), config, job, run)
            kafka = KafkaFacts(config)
            try:
                report = check(kafka, queries)
            finally:
                kafka.close()
            kept = Acknowledgements(queries.client, queries.database)
            unknown = kept.decide(report, decision)
            kept.apply(report)
            return report, unknown
    except NotAcknowledgeable as error:
        raise typer.BadParameter(str(error), param_hint="--acknowledge") from None
    except (ClickHouseFailed, KafkaUnreachable, StackError) as error:
        exit_with("audit", UNDECIDED, f"cannot decide: {with_hint(error)}")


def _print(report: AuditReport) -> None:
    """Print the accounts of all topics and the findings."""
    from rich.markup import escape
    from rich.table import Table

    columns: tuple[str, ...] = (
        "records",
        "stored",
        "empty",
        "duplicate",
        "fenced",
        *("expired",) * bool(report.rows_expired),
        *("forgotten",) * any(account.forgotten for account in report.topics),
        "dead",
        "waiting",
        "rows_published",
        "rows_stored",
    )
    columns += ("rows_expired",) * bool(report.rows_expired)
    view = Table(box=None, pad_edge=False)
    view.add_column("topic", no_wrap=True)
    for name in columns:
        view.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for account in report.topics:
        view.add_row(account.topic, *(f"{getattr(account, name):,}" for name in columns))
    console = terminal_console()
    console.print(view)
    for row in report.dropped:
        console.print(
            f"{row['topic']}: {row['dropped']:,} rows of {row['of_job']} were dropped before publication (counted)",
            markup=False,
        )
    if report.kept:
        amounts = ", ".join(f"{sum(int(row[name]) for row in report.kept):,} {name.replace('_', ' ')}" for name in KEPT)
        console.print(f"kept on the hosts, as counted by {len(report.kept):,} processes: {amounts}", highlight=False)
    counted = sum(int(row["in_windows"]) for row in report.windows)
    late = sum(int(row["late_rows"]) for row in report.windows)
    if report.windows:
        console.print(f"windows: {counted:,} rows counted, {late:,} late")
    console.print("rollups: " + ", ".join(f"{name} {rows:,}" for name, rows in report.rollups.items()), highlight=False)
    for finding in report.findings:
        text = escape(f"{finding.where}: {finding.text}")  # names in it are of jobs: no markup
        console.print(f"[bold red]{finding.kind}[/] {text} ({finding.id})", highlight=False)
    for known in report.acknowledged:
        text = f"{known.finding.where}: {known.finding.text} ({known.finding.id})"
        console.print(
            f"[yellow]acknowledged[/] {known.finding.kind} {escape(text)}\n"
            f"    {escape(known.reason)} ({escape(known.decided_by)}, {known.time})", highlight=False,
        )  # fmt: skip
    expired = f"{report.rows_expired:,} rows expired (older than retention)" if report.rows_expired else ""
    if not report.clean:
        console.print(
            *filter(None, (expired, f"[bold red]{len(report.findings)} findings[/]")), sep="\n", highlight=False
        )
    elif report.acknowledged:
        text = f"clean but for {len(report.acknowledged)} acknowledged findings"
        console.print(*filter(None, (expired, f"[bold green]{text}[/]")), sep="\n", highlight=False)
    elif expired:
        console.print(f"{expired}; of the rest nothing is lost or doubled", highlight=False)
    else:
        console.print("[bold green]clean[/]")
