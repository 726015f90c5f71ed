"""`drumline grafana`: dashboards and alert rules, as files and on a server."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, DIFFERENT
from drumline.infra.runtime.terminal import echo

if TYPE_CHECKING:
    from drumline.infra.grafana.server import Change

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Dashboards and alert rules of Grafana (12 or newer, with the ClickHouse plugin). With file access mount what "
    "`write` writes; else `apply` sends it. Settings: DRUMLINE_GRAFANA__URL, __TOKEN_FILE (a service account with role "
    "Admin), and __WEBHOOK, __SLACK, __PAGERDUTY for where alerts go. The data source is DRUMLINE_CLICKHOUSE__URL with "
    "the reader's account.",
)
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Policies = Annotated[
    bool, typer.Option("--policies", help="Also the notification policies: this replaces the server's whole tree.")
]


def _exit_on_error() -> AbstractContextManager[None]:
    from drumline.infra.grafana.server import GrafanaFailed

    return exit_on_error("grafana", GrafanaFailed, OSError, interrupt_message="interrupted")


@app.command()
def apply(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    with_policies: Policies = False,
    as_json: AsJson = False,
) -> None:
    """Bring a server's folder, data source, dashboards, rules, contact points and templates up to date.

    A repetition changes nothing. An existing data source is never changed.
    """
    from drumline.infra.grafana.server import Server

    done: list[Change] = []
    with _exit_on_error():
        for change in Server(settings()).changes(with_policies):
            if change.kind != "same" and not dry_run:
                change.does()
            done.append(change)
            if not as_json and change.kind != "same":
                echo(f"{'to do' if dry_run else 'done'}: {change.kind} {change.subject}")
    _report_missing_address()
    if as_json:
        echo(json.dumps({"dry_run": dry_run, "changes": [_plain(change) for change in done]}))
    elif all(change.kind == "same" for change in done):
        echo(f"{settings().grafana.url} is up to date ({len(done)} things)")


@app.command()
def diff(with_policies: Policies = False, as_json: AsJson = False) -> None:
    """Show what `apply` would change, and where. Exit codes: 0 nothing, 9 something."""
    from drumline.infra.grafana.server import Server

    with _exit_on_error():
        changes = [change for change in Server(settings()).changes(with_policies) if change.kind != "same"]
    if as_json:
        echo(json.dumps({"changes": [_plain(change) for change in changes]}))
    else:
        for change in changes:
            echo(f"{change.kind} {change.subject}" + (f": {', '.join(change.differs)}" if change.differs else ""))
    if changes:
        raise typer.Exit(DIFFERENT)


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; made if it is not there.")],
) -> None:
    """Fetch the dashboards and rules as a server has them now, for instance after edits there."""
    from drumline.infra.grafana.server import Server

    with _exit_on_error():
        for name, content in Server(settings()).export():
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(content)
            echo(out / name)


@app.command()
def write(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of dashboards/, provisioning/.")] = Path("grafana"),
    contact: Annotated[
        list[str] | None,
        typer.Option("--contact", help="webhook, slack, pagerduty; more than once. Addresses come from Grafana's own "
                     "environment: DRUMLINE_ALERT_WEBHOOK and so on."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Grafana uses TLS to ClickHouse's native port (9440).")
    ] = False,
    ca: Annotated[
        bool, typer.Option("--ca", help="With --tls: by a CA of your own; Grafana's environment has its certificate, "
                           "PEM, in DRUMLINE_CLICKHOUSE_CA."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 9 if a file would change.")] = False,
) -> None:  # fmt: skip
    """Write the dashboards' JSON and the provisioning files. The same sources give the same bytes."""
    from drumline.infra.grafana.catalog import dashboard_files
    from drumline.infra.grafana.provisioning.contacts import CONTACTS
    from drumline.infra.grafana.provisioning.files import provisioning_files

    chosen = [kind for kind in CONTACTS if kind in (contact or ["webhook"])]
    if unknown := set(contact or ()) - set(CONTACTS):
        text = f"no contact {', '.join(sorted(unknown))}; there are {', '.join(CONTACTS)}"
        exit_with("grafana", BAD_INPUT, text)
    if ca and not tls:
        exit_with("grafana", BAD_INPUT, "--ca is for --tls")
    changed = []
    with _exit_on_error():
        for path, content in {
            **dashboard_files(settings().serve.web_page),
            **provisioning_files(chosen, tls=tls, ca=ca, web_page=settings().serve.web_page),
        }.items():
            target = out / path
            if target.is_file() and target.read_text() == content:
                continue
            changed.append(target)
            if not check:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)
    for target in changed:
        echo(f"{'differs' if check else 'wrote'}: {target}")
    _report_missing_address()
    if check and changed:
        raise typer.Exit(DIFFERENT)


def _report_missing_address() -> None:
    """Report where the links of alerts lead if no setting names the web page."""
    if not settings().serve.url:
        echo(
            f"drumline grafana: links in alerts lead to {settings().serve.web_page}; set DRUMLINE_SERVE__URL to the "
            "address at which people open the web page",
            err=True,
        )


def _plain(change: Change) -> dict[str, object]:
    return {"what": change.subject, "change": change.kind, "differs": list(change.differs)}
