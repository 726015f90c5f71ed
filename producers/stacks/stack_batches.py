"""Sampled stacks as batches of gpu.stack.v1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from drumline.producers.batching.sample_envelopes import SampleEnvelopes, encoded
from drumline.producers.stacks.plan import Sampling
from drumline.producers.stacks.sampling_run import Recorded
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic


class StackBatches:
    """Makes the batches of one host's samplings, with sequences per job under the agent's process id."""

    def __init__(self, process_id: str) -> None:
        self._envelopes = SampleEnvelopes(process_id)

    def batches(self, sampling: Sampling, recorded: Sequence[Recorded], start_ns: int, end_ns: int) -> list[Batch]:
        """Return a batch for each part of one sampling, of equal length."""
        length_ns = (end_ns - start_ns) // len(recorded)
        begins = (start_ns + part * length_ns for part in range(len(recorded)))
        return [
            self._batch(sampling, part, begin, begin + length_ns) for part, begin in zip(recorded, begins, strict=True)
        ]

    def _batch(self, sampling: Sampling, recorded: Recorded, start_ns: int, end_ns: int) -> Batch:
        """Return the batch of one part, whose key is its job."""
        process, verdict, stacks = sampling.process.record, sampling.verdict, recorded.stacks
        about = {**process, "job": verdict.job, "run": verdict.run}
        envelope = self._envelopes.envelope(verdict.job, about, start_ns, len(stacks.rows)) | {
            "sent_ns": end_ns,
            "sampled_process": str(process["process_id"]),
            "pid": recorded.pid,
            "verdict": verdict.kind,
            "role": sampling.role,
            "named_rank": sampling.named_rank,
            "first_step": verdict.first_step,
            "last_step": verdict.last_step,
            "window_start_ns": verdict.window_start_ns,
            "time_ns": start_ns,
            "duration_ns": end_ns - start_ns,
            "samples_total": stacks.total,
            "gil_polls": recorded.gil_polls,
            "gil_waiting": recorded.gil_waiting,
            "stacks_left_out": stacks.left_out,
        }
        columns, dictionaries = encoded(Topic.STACK, [asdict(row) for row in stacks.rows])
        return Batch(Topic.STACK, envelope | dictionaries, columns)
