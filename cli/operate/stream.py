"""`drumline stream`: one stream worker."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import ACCESS_DENIED, BAD_INPUT, FAILED, INSTANCE_IN_USE, INTERRUPTED
from drumline.infra.runtime.terminal import echo
from drumline.infra.telemetry.logging import configure

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings

app = typer.Typer(add_completion=False)


def beside_up(config: Settings) -> str:
    """Return that `drumline up` runs a worker of this stack already; "" where it does not, or starts this one."""
    from drumline.infra.localstack.processes import STACK, own_processes

    workers = [] if STACK in os.environ else own_processes(config).get("stream", [])
    if not workers:
        return ""
    return (
        f"`drumline up` runs a stream worker already (process {workers[0].pid}), and this one takes a part of "
        "its partitions; that helps only where it is at its limit. Ctrl-C ends it"
    )


@app.command()
def stream(
    instance: Annotated[
        str | None,
        typer.Option(
            help="Static group membership: a name per worker. After a restart the worker gets its partitions back "
            "without a rebalance. '' is none. Default DRUMLINE_INSTANCE."
        ),
    ] = None,
) -> None:
    """Run a stream worker: rolling kernel frequency, memcpy bandwidth and straggler verdicts.

    \b
    Reads   gpu.kernel.v1 gpu.memcpy.v1 gpu.collective.v1 gpu.step.v1 gpu.device.v1 gpu.host.v1
            gpu.progress.v1 gpu.transfer.v1 gpu.stack.v1
    Writes  gpu.kernel-frequency.v1 gpu.memcpy-bandwidth.v1 gpu.lateness.v1 gpu.straggler.v1 gpu.hang.v1

    Start at most as many workers as there are partitions; they share the work. State is kept in Kafka (changelog
    topics): a killed worker loses nothing and counts nothing twice. Unreadable records go to TOPIC.dlq and are counted.

    Metrics and health: http://127.0.0.1:19464/metrics, /healthz, /readyz (DRUMLINE_METRICS_PORT, 0 = none).

    Runs until SIGTERM (exit 0) or Ctrl-C (exit 130). It ends by itself with exit code

    \b
    1  it failed while it ran, or Kafka or the schema registry does not answer: start it again
    2  a wrong setting, missing topics, or topics with unequal partitions
    6  another worker of this machine has its name
    7  Kafka or the schema registry rejects: certificate, user, password, or a missing ACL
    """
    from drumline.infra.kafka.acls import MissingTopics
    from drumline.infra.kafka.connect import BrokerUnreachable, KafkaAccessDenied
    from drumline.schemas.errors import RegistryRejected, RegistryUnavailable
    from drumline.streams.worker.checks.preflight import TopicsNotReady
    from drumline.streams.worker.faust_patches.recovery import UnsupportedFaust
    from drumline.streams.worker.main import serve
    from drumline.streams.worker.workdir import NameTaken

    config = settings()
    if instance is not None:
        config.instance = instance
    configure(config, "stream")
    if text := beside_up(config):
        echo(f"drumline stream: {text}", err=True)
    errors: dict[tuple[type[Exception], ...], int] = {  # the first that fits
        (KafkaAccessDenied, RegistryRejected): ACCESS_DENIED,
        (BrokerUnreachable, RegistryUnavailable): FAILED,
        (NameTaken,): INSTANCE_IN_USE,
        (TopicsNotReady, MissingTopics, UnsupportedFaust, ValueError, OSError): BAD_INPUT,
    }
    try:
        code = serve(config)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except tuple(kind for kinds in errors for kind in kinds) as error:
        echo(f"drumline stream: {error}", err=True)
        code = next(number for kinds, number in errors.items() if isinstance(error, kinds))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Faust's threads and tasks are stopped; what its libraries still hold must not delay the exit
