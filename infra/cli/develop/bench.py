"""`drumline bench`: figures beside their baselines, from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Kinds(TyperGroup):
    """Says which benchmarks there are to who names another."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            ctx.fail(f"no benchmark {args[0]!r}; there are {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Kinds, add_completion=False, no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="a recorded job; default: the demo's")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Write = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="write the result as this Markdown page, e.g. docs/results/bench/codec.md"),
]
Profile = Annotated[
    Path | None, typer.Option(metavar="DIR", help="also sample with py-spy, into DIR/*.txt; figures suffer a little")
]
Seconds = Annotated[float, typer.Option(min=0.01, help="CPU seconds per measurement")]


@app.callback()
def bench() -> None:
    """Measure drumline on recorded data, each figure beside its baseline in the same run.

    Figures are per CPU second where they say so: other load on the machine changes them less than it changes wall time.
    Recordings other than the demo's are in a checkout only.
    """


@app.command()
def codec(seconds: Seconds = 3.0, data: Folder = None, as_json: AsJson = False, write: Write = None) -> None:
    """Packed batches: encode and decode, beside Avro arrays and one record a message. Needs no Kafka."""
    from drumline.infra.bench.benchmarks.codec import bench_codec
    from drumline.infra.bench.runner import run

    run("codec", data, lambda folder, say: bench_codec(folder, seconds, progress=say), as_json, write)


@app.command()
def sink(
    loops: Annotated[int, typer.Option(min=1, help="repetitions of the recording")] = 6,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Exactly-once sink, Kafka to ClickHouse, beside plain at-least-once inserts. Starts a stack of its own."""
    from drumline.infra.bench.benchmarks.sink import bench_sink
    from drumline.infra.bench.runner import run

    run("sink", data, lambda folder, say: bench_sink(folder, loops, say, profile), as_json, write)


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
    from drumline.infra.bench.benchmarks.stream import bench_stream
    from drumline.infra.bench.runner import run

    run("stream", data, lambda folder, say: bench_stream(folder, loops, events, say, profile), as_json, write)


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
    from drumline.infra.bench.benchmarks.pipeline import bench_pipeline
    from drumline.infra.bench.runner import run

    run("pipeline", data, lambda folder, say: bench_pipeline(folder, loops, paced, say, profile), as_json, write)


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
    from drumline.infra.bench.benchmarks.agent import bench_agent
    from drumline.infra.bench.runner import run

    run("agent", data, lambda folder, say: bench_agent(folder, seconds, rate, ranks, say), as_json, write)


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
    from drumline.infra.bench.overhead.benchmark import bench_overhead
    from drumline.infra.bench.overhead.job import WORKLOADS
    from drumline.infra.bench.runner import run

    modes, workloads = mode or ["cupti", "cupti_off", "drumline", "paired", "duty"], workload or list(WORKLOADS)
    none = Path()  # no recording is read, and a GPU machine may have none
    run("overhead", none, lambda _, say: bench_overhead(rounds, seconds, modes, workloads, say, gpus), as_json, write)


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
    from drumline.infra.bench.benchmarks.soak import bench_soak
    from drumline.infra.bench.runner import run

    run("soak", data, lambda folder, say: bench_soak(folder, minutes, rate, ranks, say), as_json, write)


@app.command()
def algebra(
    ranks: Annotated[int, typer.Option(min=2, help="ranks of the job, all in one communicator")] = 1024,
    steps: Annotated[int, typer.Option(min=20, help="steps, a second each")] = 40,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """The straggler algebra alone at 1,024 ranks and one step a second: CPU seconds a second. Needs no Kafka."""
    from drumline.infra.bench.benchmarks.straggler_algebra import bench_algebra
    from drumline.infra.bench.runner import run

    run("algebra", None, lambda _, say: bench_algebra(ranks, steps, progress=say), as_json, write)


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
    from drumline.infra.bench.benchmarks.scale import RANKS, bench_scale
    from drumline.infra.bench.runner import run

    run("scale", data, lambda folder, say: bench_scale(folder, ranks or RANKS, kernels, seconds, say), as_json, write)


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
    from drumline.infra.bench.benchmarks.queries import bench_queries
    from drumline.infra.bench.runner import run

    run("queries", data, lambda folder, say: bench_queries(folder, rows, repeats, say), as_json, write)
