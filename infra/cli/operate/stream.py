"""`drumline stream`: one stream worker."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from drumline.infra.config.settings import settings
from drumline.infra.telemetry.logging import configure

app = typer.Typer(add_completion=False)


@app.command()
def stream(
    instance: Annotated[
        str | None,
        typer.Option(
            help="A name of its own per worker: after a restart it gets its partitions back at once, without a "
            "rebalance. '' is none. Default DRUMLINE_STREAM__INSTANCE."
        ),
    ] = None,
) -> None:
    """Run a stream worker: rolling kernel frequency, memcpy bandwidth and straggler verdicts.

    \b
    Reads   gpu.kernel.v1 gpu.memcpy.v1 gpu.collective.v1 gpu.step.v1 gpu.device.v1
    Writes  gpu.kernel-frequency.v1 gpu.memcpy-bandwidth.v1 gpu.lateness.v1 gpu.straggler.v1

    Start as many as there are partitions; they share the work. State lives in Kafka (changelog topics): a worker that
    is killed loses nothing and counts nothing twice. Records that cannot be read go to TOPIC.dlq, and are counted.

    Metrics and health: http://127.0.0.1:19464/metrics, /healthz, /readyz (DRUMLINE_STREAM__METRICS_PORT, 0 = none).

    Runs until SIGINT (exit 130) or SIGTERM (exit 0). Exit 1 when it failed while it ran: start it again. Exit 2 when it
    could not start: no broker, wrong certificate or password, missing topics or ACLs, settings that do not fit, or
    another worker of this machine has its name.
    """
    from drumline.infra.kafka.acls import MissingTopics
    from drumline.schemas.errors import RegistryUnavailable
    from drumline.streams.worker.checks.preflight import TopicsNotReady
    from drumline.streams.worker.faust_patches.recovery import UnsupportedFaust
    from drumline.streams.worker.main import serve

    config = settings()
    if instance is not None:
        config.stream.instance = instance
    configure(config, "stream")
    try:
        code = serve(config)
    except (TopicsNotReady, MissingTopics, RegistryUnavailable, UnsupportedFaust, ValueError, OSError) as error:
        print(f"drumline stream: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Faust's threads and tasks are stopped; what its libraries still hold must not delay the exit
