"""`drumline bench`: results beside their baselines, from one run."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from drumline.lab.bench.result import BenchReport


class Kinds(TyperGroup):
    """Lists the benchmarks where another name is given."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the benchmark that `args` name. Raises typer's usage error for an unknown name."""
        if args and args[0] not in self.commands:
            ctx.fail(f"no benchmark {args[0]!r}; there are {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


class PipelinePart(StrEnum):
    """Parts of the benchmark of the whole pipeline: as fast as possible, delays of verdicts, CPU once it is steady."""

    THROUGHPUT = "throughput"
    DELAYS = "delays"
    COST = "cost"


app = typer.Typer(cls=Kinds, add_completion=False, no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="a recorded job; default: the demo's")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Write = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="write the result as this Markdown page, e.g. docs/results/bench/codec.md"),
]
Profile = Annotated[
    Path | None, typer.Option(metavar="DIR", help="also sample with py-spy, into DIR/*.txt; results suffer a little")
]
Seconds = Annotated[float, typer.Option(min=0.01, help="CPU seconds per measurement")]


@app.callback()
def bench() -> None:
    """Measure drumline on recorded data, each result beside its baseline from the same run.

    Many results are per CPU second, which other load on the machine changes less than wall time. Recordings other than
    the demo's are in a checkout only.
    """


@app.command()
def codec(seconds: Seconds = 3.0, data: Folder = None, as_json: AsJson = False, write: Write = None) -> None:
    """Encode and decode packed batches, beside Avro arrays and one record a message. Needs no Kafka."""
    from drumline.lab.bench.benchmarks.codec import bench_codec
    from drumline.lab.bench.runner import run

    run("codec", data, lambda folder, show: bench_codec(folder, seconds, progress=show), as_json, write)


@app.command()
def sink(
    loops: Annotated[int, typer.Option(min=1, help="repetitions of the recording")] = 6,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure the exactly-once sink beside plain at-least-once inserts. Starts a private stack."""
    from drumline.lab.bench.benchmarks.sink import bench_sink
    from drumline.lab.bench.runner import run

    run("sink", data, lambda folder, show: bench_sink(folder, loops, show, profile), as_json, write)


@app.command()
def stream(
    loops: Annotated[int, typer.Option(min=1, help="repetitions of the recording")] = 12,
    events: Annotated[int, typer.Option(min=100, help="messages for the baseline")] = 30_000,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure the worker's kernel frequency beside a windowed Faust table with one event a message. Private stack."""
    from drumline.lab.bench.benchmarks.stream import bench_stream
    from drumline.lab.bench.runner import run

    run("stream", data, lambda folder, show: bench_stream(folder, loops, events, show, profile), as_json, write)


@app.command()
def pipeline(
    loops: Annotated[int, typer.Option(min=1, help="repetitions as fast as possible")] = 8,
    paced: Annotated[int, typer.Option(min=1, help="repetitions at the recorded speed, for delays")] = 3,
    only: Annotated[list[PipelinePart] | None, typer.Option(help="only this part, repeatable; cost: 5 minutes")] = None,
    data: Folder = None,
    profile: Profile = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure the whole pipeline: throughput, memory, lag, delay of verdicts, CPU when steady. Private stacks."""
    from drumline.lab.bench.benchmarks.pipeline import bench_pipeline
    from drumline.lab.bench.runner import run

    parts = only or list(PipelinePart)

    def measure(folder: Path, show: Callable[[str], None]) -> BenchReport:
        return bench_pipeline(folder, loops, paced, show, profile, parts)

    run("pipeline", data, measure, as_json, write)


@app.command()
def agent(
    seconds: Annotated[float, typer.Option(min=1, help="how long the ranks write")] = 60.0,
    rate: Annotated[float, typer.Option(min=1, help="kernels/s of each rank")] = 20_000,
    ranks: Annotated[int, typer.Option(min=1, help="training processes on the host")] = 8,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure the node agent beside a job that writes into spools, then catching up. Starts a private stack."""
    from drumline.lab.bench.benchmarks.agent import bench_agent
    from drumline.lab.bench.runner import run

    run("agent", data, lambda folder, show: bench_agent(folder, seconds, rate, ranks, show), as_json, write)


@app.command()
def overhead(
    rounds: Annotated[int, typer.Option(min=1, help="processes of each mode, interleaved")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="time of each workload in each process")] = 4.0,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="light, auto, drumline (policy always), cupti, cupti_off, paired, record_callback, "
            "torch_profiler; plain is always there"
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="gpu_bound, launch_bound, tiny_kernels, graph_replay (default: these); with NCCL on two GPUs, in "
            "modes light, auto, drumline, nvrx, gpufl: ddp_launch_bound, ddp_gpu_bound"
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs used side by side, each with its share of the cores")] = 1,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure the cost of recording on this machine's GPU, beside CUPTI alone and nothing. Needs PyTorch."""
    from drumline.lab.bench.overhead.benchmark import bench_overhead
    from drumline.lab.bench.overhead.job import WORKLOADS
    from drumline.lab.bench.runner import run

    modes, workloads = mode or ["cupti", "cupti_off", "drumline", "paired"], workload or list(WORKLOADS)
    none = Path()  # no recording is read, and a GPU machine may have none
    run("overhead", none, lambda _, show: bench_overhead(rounds, seconds, modes, workloads, show, gpus), as_json, write)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.5, help="length of the run")] = 60.0,
    rate: Annotated[float | None, typer.Option(min=1, help="kernels/s; default: half of a probe at full speed")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="ranks that the recorded job is stretched to")] = 16,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Run the pipeline at half of its rate for an hour: memory, lag, then the audit. Private stack; 10 GB."""
    from drumline.lab.bench.benchmarks.soak import bench_soak
    from drumline.lab.bench.runner import run

    run("soak", data, lambda folder, show: bench_soak(folder, minutes, rate, ranks, show), as_json, write)


@app.command()
def names(
    windows: Annotated[int, typer.Option(min=8, help="windows of each of 9 healthy jobs of a kind")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="of the jobs")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="so many seeds, from --seed on; a minute of CPU each")] = 2,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Count healthy windows that name a rank, and the windows until a late rank is named. Needs no Kafka.

    By default 12,960 healthy windows, in about two minutes of CPU. More seeds make the interval of the rate narrower.
    """
    from drumline.lab.bench.benchmarks.names import bench_names
    from drumline.lab.bench.runner import run

    run("names", None, lambda _, show: bench_names(windows, range(seed, seed + seeds), show), as_json, write)


@app.command()
def scale(
    ranks: Annotated[list[int] | None, typer.Option(min=4, help="ranks of a job, repeatable; 4 to 16384")] = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Measure worker and sink beside made-up jobs of 4 to 16,384 ranks, through Kafka. Private stacks; 15 minutes."""
    from drumline.lab.bench.benchmarks.scale import RANKS, bench_scale
    from drumline.lab.bench.runner import run

    run("scale", None, lambda _, show: bench_scale(ranks or RANKS, show), as_json, write)


@app.command()
def queries(
    rows: Annotated[
        int | None, typer.Option(min=10_000, help="kernels, at least; the default, 100 million, takes 2 GB of disk")
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=16, help="above 16: a job without raw kernels, --rows counts steps (10 million)")
    ] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions of each query")] = 7,
    data: Folder = None,
    as_json: AsJson = False,
    write: Write = None,
) -> None:
    """Time every cookbook query, panel and alert rule over recorded kernels in the real engine."""
    from drumline.lab.bench.benchmarks.queries import bench_queries
    from drumline.lab.bench.runner import run

    run("queries", data, lambda folder, show: bench_queries(folder, rows, repeats, show, ranks), as_json, write)
