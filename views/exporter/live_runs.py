"""The live runs: verdicts, standstills, processes, lost GPUs. No I/O; the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.schemas.batch import Batch
from drumline.schemas.record_table import RecordTable
from drumline.schemas.topics import Topic
from drumline.views.exporter.run_state import SECOND_NS, RunState

#: Processes whose pod is remembered; those of the runs whose processes were last read first are forgotten beyond it.
MOST_PROCESSES = 262_144
#: A GPU that was lost has a row every 10 s; without one for this long it is back, or nobody samples it; ns.
LOST_NS = 60 * SECOND_NS
Run = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Holds where a rank runs, as its process states."""

    host: str = ""
    gpu_uuid: str = ""
    namespace: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class LostGpu:
    """Holds a GPU that does not answer. Times are ns since the epoch."""

    host: str
    gpu_uuid: str
    job: str
    run: str
    first_ns: int
    last_ns: int


class LiveRuns:
    """Keeps the state of each (job, run). For one thread."""

    def __init__(self) -> None:
        self.runs: dict[Run, RunState] = {}
        self.lost: dict[tuple[str, str], LostGpu] = {}
        self._places: dict[Run, dict[int, tuple[int, PodPlace]]] = {}
        self._processes = 0

    def take(self, batch: Batch) -> bool:
        """Take a batch of verdicts, of a standstill, or of a process; return whether it changed anything."""
        of = batch.envelope
        if batch.topic == Topic.PROCESS:
            return self._take_process(batch)
        run = self.runs.setdefault((str(of["job"]), str(of["run"])), RunState())
        return run.take_window(batch) if batch.topic == Topic.STRAGGLER else run.take_hang(batch)

    def _take_process(self, batch: Batch) -> bool:
        of = batch.envelope
        if int(of["rank"]) < 0 or not of["job"]:
            return False
        run, started_ns = (str(of["job"]), str(of["run"])), int(of["start_ns"])
        ranks = self._places.pop(run, {})
        self._places[run] = ranks  # the newest at the end
        known = ranks.get(int(of["rank"]))
        if known is not None and known[0] > started_ns:
            return False
        self._processes += known is None
        place = PodPlace(*(str(of[name]) for name in ("host", "gpu_uuid", "k8s_namespace", "k8s_pod")))
        ranks[int(of["rank"])] = started_ns, place
        while self._processes > MOST_PROCESSES and len(self._places) > 1:
            self._processes -= len(self._places.pop(next(iter(self._places))))
        return known is None or known[1] != place

    def take_samples(self, table: RecordTable) -> bool:
        """Take samples of GPUs (gpu.device.v1); only whether they are lost counts. Return whether one is."""
        changed = False
        lost = table.columns["lost"] == 1
        for row in lost.nonzero()[0].tolist():
            part = int(table.part_of[row])
            host, gpu, job, run = (table.text(name)[part] for name in ("host", "gpu_uuid", "job", "run"))
            time_ns = int(table.columns["time_ns"][row])
            known = self.lost.get((host, gpu))
            first_ns = known.first_ns if known is not None else time_ns
            self.lost[host, gpu] = LostGpu(host, gpu, job, run, first_ns, max(time_ns, known.last_ns if known else 0))
            changed = True
        return changed

    def place(self, run: Run, rank: int) -> PodPlace:
        """Return where a rank runs, as far as its process is known."""
        return self._places.get(run, {}).get(rank, (0, PodPlace()))[1]

    def expire(self, now_ns: int, expire_ns: int) -> None:
        """Forget runs that are not live any more, and GPUs that are not lost any more."""
        for run in [run for run, state in self.runs.items() if not state.is_live(now_ns, expire_ns)]:
            del self.runs[run]
        for gpu in [gpu for gpu, loss in self.lost.items() if now_ns - loss.last_ns > LOST_NS]:
            del self.lost[gpu]
