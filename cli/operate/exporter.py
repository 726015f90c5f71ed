"""`drumline exporter`: verdicts for Prometheus, OpenTelemetry and node-health systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import ACCESS_DENIED, BAD_INPUT, FAILED
from drumline.infra.telemetry.logging import configure

if TYPE_CHECKING:
    from drumline.views.exporter.options import ExporterOptions
    from drumline.views.exporter.program import VerdictReceiver

app = typer.Typer(add_completion=False)


@app.command()
def exporter(
    worst: Annotated[
        int, typer.Option(min=0, max=4_096, help="Ranks of a run with series of their own, the worst first.")
    ] = 32,
    series: Annotated[int, typer.Option(min=100, max=200_000, help="Most series about jobs, ranks and GPUs.")] = 4_500,
    expire_s: Annotated[
        float, typer.Option("--expire", min=30, help="Seconds after its newest window until a run has no series.")
    ] = 600.0,
    losses: Annotated[bool, typer.Option(help="Read the samples of GPUs too: whether one does not answer.")] = True,
    otlp: Annotated[
        str, typer.Option(metavar="URL", help="http(s)://HOST:4318 of an OpenTelemetry Collector to send to as well.")
    ] = "",
    otlp_s: Annotated[float, typer.Option("--otlp-every", min=1, help="Seconds between metrics sent to it.")] = 30.0,
    spans: Annotated[
        bool, typer.Option(help="With --otlp: send a span of each request of an engine, in its caller's trace.")
    ] = True,
    otlp_token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that the Collector wants.")
    ] = None,
    nvsentinel: Annotated[
        Path | None, typer.Option(metavar="SOCKET", help="Send events about nodes to this platform connector.")
    ] = None,
    nvsentinel_acts: Annotated[
        bool, typer.Option("--nvsentinel-acts", help="Let NVSentinel act on them; else it only stores them.")
    ] = False,
) -> None:
    """Serve the verdicts of running jobs to Prometheus; send them by OTLP, and as events about nodes, where asked for.

    \b
    Reads   gpu.straggler.v1 gpu.hang.v1 gpu.process.v1, and gpu.device.v1 for lost GPUs, gpu.request.v1 for spans
    Serves  http://127.0.0.1:19467/metrics, /healthz, /readyz, /nodes/NAME
            (DRUMLINE_METRICS_PORT, DRUMLINE_METRICS_ADDRESS)

    Each job has series of its state, each of its worst ranks (--worst) some more, and a rest holds what the others
    lost. There are 4,500 at most (--series), worst jobs and ranks first. A job without a new window for 10 minutes
    (--expire) has none. Scrape with `honor_labels: true`: series have a label `job`.

    --otlp also sends the metrics, and verdicts, hangs and lost GPUs as log events, to an OpenTelemetry Collector.
    So it does spans of the requests of inference engines, where the caller's trace is sampled (--spans).
    --nvsentinel sends health events to NVSentinel.

    It joins no group, commits nothing and stores nothing: run one, or several. Runs until SIGTERM (exit 0) or Ctrl-C
    (exit 130). It ends by itself with exit code

    \b
    1  Kafka or the schema registry does not answer at the start: start it again
    2  a wrong setting, a port in use, missing topics, or a package of an extra is missing
    7  Kafka or the schema registry rejects: certificate, user, password, or a missing ACL
    """
    from drumline.infra.kafka.acls import require_acls
    from drumline.infra.kafka.registry import codec
    from drumline.infra.runtime.signals import ShutdownSignal
    from drumline.infra.telemetry.health import Health, serve_health
    from drumline.infra.telemetry.secrets import hide
    from drumline.views.exporter.options import ExporterOptions
    from drumline.views.exporter.program import Exporter
    from drumline.views.exporter.verdict_feed import GROUP, topics_of

    config = settings()
    configure(config, "exporter")
    with exit_on_error("exporter", OSError, code=BAD_INPUT):
        token = "" if otlp_token_file is None else otlp_token_file.read_text().strip()
    if otlp and (urlsplit(otlp).scheme not in ("http", "https") or not urlsplit(otlp).hostname):
        exit_with("exporter", BAD_INPUT, "--otlp: http://host:port or https://host:port")
    hide(token)
    options = ExporterOptions(worst, series, expire_s, losses, otlp, otlp_s, token, spans, nvsentinel, nvsentinel_acts)
    with _exit_on_error():
        require_acls(config, GROUP, dict.fromkeys(topics_of(options), ("READ",)), {GROUP: ("READ",)}, is_patient=True)
        health, decoder = Health(), codec(config)
    with exit_on_error("exporter", ModuleNotFoundError, code=BAD_INPUT):
        receivers = _receivers(options, config.ca)
    program = Exporter(config, options, decoder, health, receivers)
    server = serve_health("exporter", config, health, program.expose, program.page, "/nodes/NAME")
    if server is None and config.metrics_port != 0:
        exit_with("exporter", BAD_INPUT, "another program has its port; the log names the settings for another one")
    stopping = ShutdownSignal()
    program.run(stopping)
    raise typer.Exit(stopping.code)


def _receivers(options: ExporterOptions, ca: Path | None) -> list[VerdictReceiver]:
    """Return the receivers that are asked for. Raises ModuleNotFoundError with the extra that is missing."""
    receivers: list[VerdictReceiver] = []
    if options.otlp:
        from drumline.views.exporter.otlp import Otlp

        receivers.append(Otlp(options, ca))
    if options.nvsentinel is not None:
        from drumline.views.exporter.nvsentinel import NvSentinel

        receivers.append(NvSentinel(options.nvsentinel, options.nvsentinel_acts))
    return receivers


@contextmanager
def _exit_on_error() -> Iterator[None]:
    from drumline.infra.kafka.acls import MissingTopics
    from drumline.infra.kafka.connect import BrokerUnreachable, KafkaAccessDenied
    from drumline.schemas.errors import RegistryRejected, RegistryUnavailable

    try:
        yield
    except MissingTopics as error:
        exit_with("exporter", BAD_INPUT, str(error))
    except (KafkaAccessDenied, RegistryRejected) as error:
        exit_with("exporter", ACCESS_DENIED, str(error))
    except (BrokerUnreachable, RegistryUnavailable) as error:
        exit_with("exporter", FAILED, str(error))
