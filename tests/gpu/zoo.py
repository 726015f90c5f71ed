"""Run jobs of many shapes with known faults, and record each by CUPTI and by NCCL's plugin; called by zoo.sh.

usage: zoo.py OUT [SHAPE...]

SHAPES (zoo_plan.py) has the names, the most important first. Each runs the same phases. OUT gets recordings.tar, cut
into pieces and written again after each shape: a folder a shape with cupti.xz, light.xz (zoo_rows.py), stacks.json.xz
(zoo_stacks.py), manifest.json, and the output of its ranks; and zoo.json. A shape that fails, or has no time left, is
reported, and the next one begins. ZOO_SECONDS: time for all. ZOO_PHASE_S: length of a phase. ZOO_MODE: whole, short
(phases of 6 s), or once (other sizes, ranks and lengths). ZOO_PHASES: faults in place of the mode's, as `host:1:0.1
gpu:0:0.35`. ZOO_RAW: shapes whose rings are kept. DRUMLINE_RINGS__TIMES=all: each step is measured.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from zoo_hosts import host_of
from zoo_plan import MODES, SHAPES, Phase, Shape, phases_of
from zoo_results import write_manifest, write_pieces

from drumline.producers.ipc.policy import LIGHT, Policy
from drumline.producers.launcher import LaunchOptions, environment, load_plugin
from drumline.producers.spool.location import make_rings

FOLDER = Path(__file__).parent
MODE = os.environ.get("ZOO_MODE", "whole")
PHASE_S = float(os.environ.get("ZOO_PHASE_S", "6" if MODE == "short" else "20"))
PHASES: list[Phase] = phases_of(os.environ.get("ZOO_PHASES", ""), PHASE_S, MODE)
SHAPE_S = sum(seconds for *_, seconds in PHASES)
BEGAN, SECONDS = time.monotonic(), float(os.environ.get("ZOO_SECONDS", "530"))
RANKS, CORES = 2, min(4, max(1, len(os.sched_getaffinity(0)) // 6))
#: From the gate to the first phase, at most; from the end of the last phase to the end of the ranks; for packing; s.
START_S, END_S, PACK_S = float(os.environ.get("ZOO_START_S", "80")), 20.0, 90.0
#: Expected time from the gate to the first phase; time before the end of a shape at which the next one starts; s.
EXPECTED_S, EARLY_S = 12.0, 25.0


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


class Zoo:
    """Runs shapes one after the other, with one agent beside them. `work`: a folder in memory, `disk`: on a disk."""

    def __init__(self, out: Path, work: Path, disk: Path) -> None:
        self.out, self.work, self.disk = out, work, disk
        self.spool, self.packed = work / "spool", work / "packed"
        self.packed.mkdir()
        self.cores = sorted(os.sched_getaffinity(0))
        self.spare = ",".join(map(str, self.cores[2 * RANKS * CORES :] or self.cores))

    def variables(self, shape: Shape) -> dict[str, str]:
        """Return the environment of both ranks: CUPTI's rows go into the spool, NCCL's into rings of the shape."""
        command = [sys.executable, str(FOLDER / "zoo_job.py"), shape.name]
        values = {
            **os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "NCCL_NVLS_ENABLE": "0",
            "MASTER_PORT": str(29600 + shape.number), "OMP_NUM_THREADS": "2", "ZOO_SEED": str(MODES[MODE][0]),
            "ZOO_PLAN": str(shape.folder / "plan.json"), "ZOO_GATE": str(shape.folder / "gate"),
            "ZOO_DISK": str(self.disk), "ZOO_SPARE_CORES": self.spare,
            "ZOO_PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "DRUMLINE_RINGS__RECORDS": "1048576",
            "TORCHINDUCTOR_CACHE_DIR": str(self.disk / "inductor"), "TRITON_CACHE_DIR": str(self.disk / "triton"),
        }  # fmt: skip
        options = LaunchOptions(job=shape.job, run="r", policy="always", spool=str(self.spool))
        values = load_plugin(environment(values, command, options), Policy(LIGHT))
        values["DRUMLINE_RINGS__FOLDER"] = str(shape.folder / "rings")  # apart from the spool, which has an agent
        make_rings(values)
        return values

    def start(self, shape: Shape) -> None:
        """Start the ranks of a shape; they wait for its gate before they use a GPU."""
        shape.folder.mkdir()
        plan = {"folder": str(shape.folder), "phases": PHASES}
        (shape.folder / "plan.json").write_text(json.dumps(plan))
        values = self.variables(shape)
        command = [sys.executable, str(FOLDER / "zoo_job.py"), shape.name]
        for rank in range(RANKS):
            first = ((shape.number % 2 * RANKS + rank) * CORES) % len(self.cores)
            cores = ",".join(map(str, self.cores[first : first + CORES]))
            prefix, more = host_of(rank) if shape.name == "two_hosts" else ([], {})
            with (
                (shape.folder / f"{rank}.log").open("w") as log,
                (shape.folder / f"{rank}.err").open("w") as errors,
            ):
                shape.ranks.append(
                    subprocess.Popen(
                        [*prefix, "taskset", "-c", cores, *command],
                        env={**values, "RANK": str(rank), "LOCAL_RANK": str(rank), **more},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=errors,
                    )
                )

    def run(self, shape: Shape, following: list[Shape]) -> None:
        """Let a shape run; start the next one before it ends. Raises RuntimeError where it fails."""
        (shape.folder / "gate").touch()
        began, until = shape.folder / "began", time.monotonic() + START_S * (2 if shape.name == "compiled" else 1)
        while not began.exists():
            if time.monotonic() > until:
                raise RuntimeError("the first phase does not begin")
            self.check(shape)
            time.sleep(0.1)
        pids = [str(rank.pid) for rank in shape.ranks]
        subprocess.Popen(
            ["taskset", "-c", self.spare, sys.executable, str(FOLDER / "zoo_stacks.py"), str(shape.folder), *pids],
            stdin=subprocess.DEVNULL,
        )
        values = json.loads(began.read_text())
        end_s = values["at"] + SHAPE_S
        shape.result |= {"began": values["at"], "healthy_step_ms": round(1e3 * values["step_s"], 3)}
        report(f"{shape.name}: steps of {1e3 * values['step_s']:.1f} ms, phases of {PHASE_S:g} s")
        while time.time() < end_s + END_S and any(rank.poll() is None for rank in shape.ranks):
            if following and time.time() > end_s - EARLY_S:
                self.start(following.pop(0))
            self.check(shape)
            time.sleep(0.1)
        if any(rank.poll() is None for rank in shape.ranks):
            raise RuntimeError(f"a rank goes on {END_S:.0f} s after the last phase")
        self.check(shape)

    def check(self, shape: Shape) -> None:
        if codes := [code for rank in shape.ranks if (code := rank.poll())]:
            time.sleep(1)
            raise RuntimeError(f"exit code {codes[0]}")

    def end(self, shape: Shape) -> None:
        """Kill the ranks that are left, and note the ends of their errors where the shape failed."""
        for rank in shape.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        shape.result["codes"] = [rank.returncode for rank in shape.ranks]
        if "error" in shape.result:
            for path in sorted(shape.folder.glob("*.err")):
                tail = path.read_bytes()[-1500:].decode(errors="replace")
                report(f"{shape.name}: end of {path.name}:\n{tail}")

    def begin_packing(self, shape: Shape) -> None:
        """Pack the rows in a process on cores that no rank uses."""
        command = ["nice", sys.executable, str(FOLDER / "zoo_rows.py"), self.spool, shape.folder / "rings"]
        command += [self.packed / shape.name, shape.job]
        if shape.name in os.environ.get("ZOO_RAW", "").split():
            command.append("raw")
        with (shape.folder / "packing.err").open("w") as errors:
            process = subprocess.Popen(
                ["taskset", "-c", self.spare, *map(str, command)],
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
        shape.packing = process, time.monotonic() + PACK_S

    def finish_packing(self, shape: Shape, wait: bool) -> bool:
        """Return whether the rows of a shape are packed, or will not be; then its folder has all that there is."""
        if shape.packing is None:
            return True
        process, until = shape.packing
        try:
            code: object = process.wait(max(0.0, min(until - time.monotonic(), left())) if wait else 0)
        except subprocess.TimeoutExpired:
            if time.monotonic() < until and not wait:
                return False
            process.kill()
            process.wait()
            code = "it took too long"
        shape.packing = None
        folder = self.packed / shape.name
        folder.mkdir(exist_ok=True)
        if code:
            errors = (shape.folder / "packing.err").read_text()[-600:]
            shape.result["packing"] = f"{code}: {errors}"
            report(f"{shape.name}: packing failed: {code}: {errors}")
        settings = {"mode": MODE, "times": os.environ.get("DRUMLINE_RINGS__TIMES", ""), **shape.result}
        facts = write_manifest(shape.name, shape.folder, folder, PHASES, settings)
        report(f"{shape.name}: packed {json.dumps(facts)}")
        for path in (shape.folder / "rings").glob("*.ring"):
            path.unlink()
        return True

    def write(self, shapes: list[Shape]) -> None:
        """Write all that is packed into OUT."""
        if left_out := write_pieces(self.packed, self.work / "recordings.tar", self.out):
            report(f"{left_out} bytes are too many, and left out")
        results = {shape.name: shape.result for shape in shapes}
        (self.out / "zoo.json").write_text(json.dumps({"phases": PHASES, "shapes": results}, indent=1))

    def shapes(self, names: list[str]) -> None:
        """Run the shapes."""
        shapes = [Shape(name, number, self.work / name) for number, name in enumerate(names)]
        for shape in shapes:
            after = shapes[shape.number + 1 : shape.number + 2]
            try:
                if left() < SHAPE_S + EXPECTED_S + PACK_S / 3:
                    raise RuntimeError(f"no time left ({left():.0f} s)")
                if not shape.ranks:
                    self.start(shape)
                fits = left() > 2 * (SHAPE_S + EXPECTED_S) + PACK_S / 3
                self.run(shape, after if fits else [])
            except Exception as error:
                if not isinstance(error, RuntimeError):
                    traceback.print_exc()
                shape.result["error"] = f"{type(error).__name__}: {error}"[:300]
            self.end(shape)
            report(f"{shape.name}: {shape.result.get('error', 'done')}")
            if shape.ranks:
                self.begin_packing(shape)
            for earlier in shapes[: shape.number]:
                if earlier.packing and self.finish_packing(earlier, wait=False):
                    self.write(shapes)
        for shape in shapes:
            self.finish_packing(shape, wait=True)
            self.write(shapes)


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    disk = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as memory, tempfile.TemporaryDirectory(dir=disk) as slow:
        zoo = Zoo(out, Path(memory), Path(slow))
        os.environ |= {"DRUMLINE_SPOOL__ROOT": str(zoo.spool), "DRUMLINE_SPOOL__MAX_MB": "4096"}
        os.environ["DRUMLINE_KAFKA__BOOTSTRAP"] = "127.0.0.1:9"
        with (out / "agent.log").open("w") as log:
            agent = subprocess.Popen(["drumline", "agent"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            zoo.shapes(sys.argv[2:] or SHAPES)
        finally:
            agent.terminate()
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()


if __name__ == "__main__":
    main()
