"""`drumline bench`: figures beside their baselines, from one run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

if TYPE_CHECKING:
    from drumline.bench.figures import Report


class Kinds(TyperGroup):
    """Says which benchmarks there are to who names another."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            ctx.fail(f"no benchmark {args[0]!r}; there are {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Kinds, add_completion=False, no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="a recorded job; default: the demo's")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Write = Annotated[Path | None, typer.Option(help="put the result into this Markdown file, e.g. docs/performance.md")]
Profile = Annotated[
    Path | None, typer.Option(metavar="DIR", help="also sample with py-spy, into DIR/*.txt; figures suffer a little")
]
Seconds = Annotated[float, typer.Option(min=0.01, help="CPU seconds per measurement")]


@app.callback()
def bench() -> None:
    """Measure drumline on recorded data, each figure beside its baseline in the same run.

    Figures are per CPU second where they say so: other load on the machine changes them less than it changes wall time.
    Benchmarks live in the repository's tests/bench; recordings other than the demo's are in a checkout only.
    """


@app.command()
def codec(seconds: Seconds = 3.0, data: Folder = None, as_json: AsJson = False, write: Write = None) -> None:
    """Packed batches: encode and decode, beside Avro arrays and one record a message. Needs no Kafka."""
    from drumline.bench.codec import bench_codec

    def measure(folder: Path, progress: Callable[[str], None]) -> Report:
        return bench_codec(folder, seconds, progress=progress)

    _run("codec", data, measure, as_json, write)


@app.command()
def sink(
    loops: Annotated[int, typer.Option(min=1, help="repetitions of the recording")] = 6,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Exactly-once sink, Kafka to ClickHouse, beside plain at-least-once inserts. Starts a stack of its own."""
    from drumline.bench.sink import bench_sink

    _run("sink", data, lambda folder, progress: bench_sink(folder, loops, progress, profile), as_json, write)


@app.command()
def stream(
    loops: Annotated[int, typer.Option(min=1, help="repetitions of the recording")] = 12,
    events: Annotated[int, typer.Option(min=100, help="messages for the baseline")] = 30_000,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The Faust worker's kernel frequency, beside a windowed Faust table fed one event a message. Own stack."""
    from drumline.bench.stream import bench_stream

    def measure(folder: Path, progress: Callable[[str], None]) -> Report:
        return bench_stream(folder, loops, events, progress, profile)

    _run("stream", data, measure, as_json, write)


@app.command()
def pipeline(
    loops: Annotated[int, typer.Option(min=1, help="repetitions as fast as possible")] = 8,
    paced: Annotated[int, typer.Option(min=1, help="repetitions at the recorded speed, for delays")] = 3,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Broker, worker, sink and engine together: throughput, memory, lag, delay of verdicts. Own stack."""
    from drumline.bench.pipeline import bench_pipeline

    def measure(folder: Path, progress: Callable[[str], None]) -> Report:
        return bench_pipeline(folder, loops, paced, progress, profile)

    _run("pipeline", data, measure, as_json, write)


@app.command()
def agent(
    seconds: Annotated[float, typer.Option(min=1, help="how long the ranks write")] = 60.0,
    rate: Annotated[float, typer.Option(min=1, help="kernels/s of each rank")] = 20_000,
    ranks: Annotated[int, typer.Option(min=1, help="training processes on the host")] = 8,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The node agent beside a job that writes into the spool: CPU, memory, backlog; then catching up. Own stack."""
    from drumline.bench.agent import bench_agent

    _run("agent", data, lambda folder, progress: bench_agent(folder, seconds, rate, ranks, progress), as_json, write)


@app.command()
def overhead(
    rounds: Annotated[int, typer.Option(min=1, help="processes of each mode, in turn")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="how long each workload runs in each process")] = 4.0,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="cupti, cupti_off, drumline, paired, duty, record_callback, torch_profiler; plain is always there"
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="gpu_bound, launch_bound, tiny_kernels, graph_replay; default: all")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs used side by side, each with its share of the cores")] = 1,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """What recording costs training steps on this machine's GPU, beside nothing and CUPTI alone. Needs PyTorch."""
    from drumline.bench.overhead import bench_overhead
    from drumline.bench.overhead_job import WORKLOADS

    modes, workloads = mode or ["cupti", "cupti_off", "drumline", "paired", "duty"], workload or list(WORKLOADS)

    def measure(_: Path, progress: Callable[[str], None]) -> Report:
        return bench_overhead(rounds, seconds, modes, workloads, progress, gpus)

    _run("overhead", Path(), measure, as_json, write)  # no recording is read, and a GPU machine may have none


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.5, help="how long")] = 60.0,
    rate: Annotated[float | None, typer.Option(min=1, help="kernels/s; default: half of a probe at full speed")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="ranks that the recorded job is stretched to")] = 16,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The pipeline at half of its rate for an hour: memory and lag over time, then the audit. Own stack; 10 GB."""
    from drumline.bench.soak import bench_soak

    def measure(folder: Path, progress: Callable[[str], None]) -> Report:
        return bench_soak(folder, minutes, rate, ranks, progress)

    _run("soak", data, measure, as_json, write)


@app.command()
def algebra(
    ranks: Annotated[int, typer.Option(min=2, help="ranks of the job, all in one communicator")] = 1024,
    steps: Annotated[int, typer.Option(min=20, help="steps, a second each")] = 40,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The straggler algebra alone at 1,024 ranks and one step a second: CPU seconds a second. Needs no Kafka."""
    from drumline.bench.algebra import bench_algebra

    def measure(_: Path, progress: Callable[[str], None]) -> Report:
        return bench_algebra(ranks, steps, progress=progress)

    _run("algebra", None, measure, as_json, write)


@app.command()
def scale(
    ranks: Annotated[list[int] | None, typer.Option(min=1, help="ranks of a job, repeatable; 4, 64 and 1024")] = None,
    kernels: Annotated[int, typer.Option(min=1000, help="at least about so many kernels a size")] = 8_000_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="of the recording, for every size the same")] = 5.0,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The worker's stages at several job sizes: CPU a kernel, messages, memory, workers. Own stacks; 57 M kernels."""
    from drumline.bench.scale import RANKS, bench_scale

    def measure(folder: Path, progress: Callable[[str], None]) -> Report:
        return bench_scale(folder, ranks or RANKS, kernels, seconds, progress)

    _run("scale", data, measure, as_json, write)


@app.command()
def queries(
    rows: Annotated[
        int, typer.Option(min=10_000, help="kernels, at least; the default takes 2 GB of disk")
    ] = 100_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="times each question is asked")] = 7,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Every cookbook query, panel and alert rule over recorded kernels in the real engine: time, CPU, bytes a row."""
    from drumline.bench.queries import bench_queries

    _run("queries", data, lambda folder, progress: bench_queries(folder, rows, repeats, progress), as_json, write)


def _run(
    name: str,
    data: Path | None,
    measure: Callable[[Path, Callable[[str], None]], Report],
    as_json: bool,
    write: Path | None,
) -> None:
    from confluent_kafka import KafkaException

    from drumline.bench.figures import machine
    from drumline.bench.show import show
    from drumline.bench.show import write as put

    if data is None:
        from drumline.infra.demo_run import RECORDING

        data = RECORDING
    if write is not None:
        _require_usable(write)
    errors = Console(stderr=True)
    where = machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a private stack must not outlive its benchmark
    try:
        with errors.status(f"bench {name}") as status:
            report = measure(data, lambda text: status.update(f"bench {name}: {text}"))
    except KeyboardInterrupt:
        errors.print("interrupted; what was started is stopped")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        errors.print(f"drumline bench: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    except (RuntimeError, KafkaException) as error:
        errors.print(f"drumline bench: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    report.machine = where
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show(report, Console())
    if write is not None:
        try:
            put(report, f"drumline bench {name}{_options()}", write)
        except OSError as error:
            errors.print(f"drumline bench: not written: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(1) from None


def _require_usable(path: Path) -> None:
    """Before anything is measured. Raises typer.BadParameter."""
    try:
        if path.exists():
            path.read_text()
            path.open("a").close()
        elif not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise OSError(f"no folder {path.parent} that can be written to")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be used: {error}", param_hint="--write") from None


def _options() -> str:
    """What the command was asked for, but for how to show it."""
    asked = list(sys.argv[3:])
    for position in [i for i, word in enumerate(asked) if word == "--write"]:
        asked[position : position + 2] = ["", ""]
    kept = [word for word in asked if word and word != "--json" and not word.startswith("--write=")]
    return f" {shlex.join(kept)}" if kept else ""
