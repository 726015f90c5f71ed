"""`drumline notify`: post to a webhook which hosts are at fault again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, OK
from drumline.infra.runtime.terminal import echo, escape_controls

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumline.infra.config.settings import Settings
    from drumline.views.offenders.notices import DueLimits
    from drumline.views.offenders.notify import Pass
    from drumline.views.offenders.webhook import Webhook

app = typer.Typer(add_completion=False)
#: Period of looking for a request to stop; s.
_POLL_S = 0.2


@app.command()
def notify(
    period_s: Annotated[
        float | None, typer.Option("--every", min=1, help="Go on, with a pass every so many seconds.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what is due; store and send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print notices as JSON objects, one a line.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs with a fault until a host is due.")] = 3,
    days: Annotated[int, typer.Option(min=1, max=365, help="Age up to which faults count.")] = 30,
    cloudevents: Annotated[bool, typer.Option("--cloudevents", help="Send each notice as a CloudEvent.")] = False,
) -> None:
    """Post to a webhook which hosts are at fault again, so that it can cordon and drain them.

    A host is due when it was at fault in 3 runs (--runs) within 30 days (--days) that no notice had before. It is due
    at once when it lost a GPU or failed a health check. Each fault is in one notice. `drumline sql offenders` lists all
    faults.

    It posts JSON to DRUMLINE_OFFENDERS__WEBHOOK, signed with the key in DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE as
    standardwebhooks.com describes, and tries again until it is answered with 2xx. A notice is stored before it is sent
    (table offender_notices) and marked when it was taken. If drumline is killed in between, it is sent again with the
    same webhook-id: a receiver ignores ids that it knows. Run one of them; it needs the writer's account of ClickHouse.
    With --cloudevents each notice is sent as the data of a CloudEvent.

    Exit codes: 0 nothing is left to send. 1 the receiver or ClickHouse does not answer, or rejects it. 2 a setting is
    missing. 130 Ctrl-C.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed
    from drumline.infra.telemetry.logging import configure
    from drumline.views.offenders.notices import DueLimits

    config = settings()
    configure(config, "notify")
    limits = DueLimits(runs, days)
    if dry_run:
        with exit_on_error("notify", ClickHouseFailed):
            _print_due(config, limits, as_json)
        return
    webhook = _webhook(config, cloudevents)
    if period_s is None:
        with exit_on_error("notify", ClickHouseFailed):
            result = _pass(config, limits, webhook)
        _report(result, as_json)
        raise typer.Exit(FAILED if result.left else OK)
    _repeat(lambda: _pass(config, limits, webhook), period_s, as_json)


def _webhook(config: Settings, cloudevents: bool) -> Webhook:
    from drumline.infra.config.webhook_key import webhook_key_bytes
    from drumline.views.offenders.webhook import Webhook

    offenders = config.offenders
    if offenders.webhook is None or offenders.webhook_key is None:
        exit_with(
            "notify",
            BAD_INPUT,
            "set DRUMLINE_OFFENDERS__WEBHOOK to the receiver's URL, and "
            "DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE to a file with whsec_ and 32 random bytes in base64",
        )
    return Webhook(
        offenders.webhook.get_secret_value(),
        webhook_key_bytes(offenders.webhook_key.get_secret_value()),
        config.ca,
        "cloudevents" if cloudevents else "plain",
    )


def _pass(config: Settings, limits: DueLimits, webhook: Webhook) -> Pass:
    from drumline.infra.clickhouse.client import connect
    from drumline.views.offenders.notify import notify as run

    client = connect(config, database=config.clickhouse.database)
    try:
        return run(client, limits, webhook.send, time.time())
    finally:
        client.close()


def _print_due(config: Settings, limits: DueLimits, as_json: bool) -> None:
    from drumline.infra.clickhouse.client import connect
    from drumline.views.offenders.notice_store import new_notices, unsent

    client = connect(config, reader=True, database=config.clickhouse.database)
    try:
        notices = [*unsent(client), *new_notices(client, limits, time.time())]
    finally:
        client.close()
    for notice in notices:
        echo(notice.body if as_json else escape_controls(json.loads(notice.body)["text"]))
    if not notices and not as_json:
        echo("no host is due")


def _report(result: Pass, as_json: bool) -> None:
    for notice in result.taken:
        echo(notice.body if as_json else f"sent: {escape_controls(json.loads(notice.body)['text'])}")
    for notice, reason in result.left:
        echo(f"drumline notify: not sent, host {escape_controls(notice.host)}: {reason}", err=True)
    if not result.taken and not result.left and not as_json:
        echo("no host is due")


def _repeat(one_pass: Callable[[], Pass], period_s: float, as_json: bool) -> None:
    """Make passes until a signal. Raises typer.Exit with its code."""
    import structlog

    from drumline.infra.clickhouse.client import ClickHouseFailed
    from drumline.infra.runtime.signals import ShutdownSignal

    log, stopping = structlog.get_logger(), ShutdownSignal()
    while not stopping():
        due_at = time.monotonic() + period_s
        try:
            result = one_pass()
            for notice in result.taken:
                log.info("sent", host=notice.host, id=notice.id)
            for notice, reason in result.left:
                log.warning("not sent, it is tried again", host=notice.host, id=notice.id, reason=reason)
        except ClickHouseFailed as error:
            log.warning("faults cannot be read, it is tried again", problem=str(error))
        while not stopping() and (left := due_at - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
    raise typer.Exit(stopping.code)
