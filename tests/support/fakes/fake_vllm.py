"""A fake `vllm` with the classes that the adapter joins, written into a folder, and a program that runs it."""

from __future__ import annotations

from pathlib import Path

SCHEDULER = """
import enum
from dataclasses import dataclass, field

class Reason(enum.Enum):
    LENGTH = 1

@dataclass
class Output:
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict = field(default_factory=dict)
    preempted_req_ids: object = None

class Request:
    def __init__(self, name, prompt, wanted, headers=None, arrival=0.0):
        self.request_id, self.num_prompt_tokens, self.wanted = name, prompt, wanted
        self.lora_request, self.trace_headers, self.arrival_time = None, headers, arrival
        self.num_computed_tokens = self.num_output_tokens = self.num_preemptions = 0
        self.prefill_stats = None
    num_tokens = property(lambda self: self.num_prompt_tokens + self.num_output_tokens)
    def is_finished(self): return self.num_output_tokens >= self.wanted
    def get_finished_reason(self): return Reason.LENGTH if self.is_finished() else None

class Pool:
    num_gpu_blocks = 100
    def get_num_free_blocks(self): return 60

class Scheduler:
    def __init__(self):
        self.requests, self.vllm_config = {}, type("C", (), {})()
        self.vllm_config.model_config = type("M", (), {"served_model_name": ["/secret-folder/tiny"], "model": ""})()
        self.kv_cache_manager = type("K", (), {"block_pool": Pool()})()
    def add_request(self, request): self.requests[request.request_id] = request
    def get_request_counts(self): return len(self.requests), 2
    def schedule(self, throttle_prefills=False):
        tokens = {n: max(r.num_tokens - r.num_computed_tokens, 1) for n, r in self.requests.items()}
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return Output(tokens, sum(tokens.values()))
    def update_from_output(self, scheduler_output, model_runner_output):
        for name in list(scheduler_output.num_scheduled_tokens):
            request = self.requests.get(name)
            if request is None:  # over since the batch before: with asynchronous scheduling it is in one more
                continue
            request.num_output_tokens += 1
            if request.is_finished():
                self._free_request(request)
        return {}
    def _free_request(self, request, delay_free_blocks=False):
        del self.requests[request.request_id]
"""
WORKER = """
class Worker:
    def execute_model(self, scheduler_output): return None
    def sample_tokens(self, grammar_output): return object()
"""
_BEGIN = """
import time
from vllm.v1.core.sched.scheduler import Request, Scheduler
from vllm.v1.worker.gpu_worker import Worker
scheduler, worker = Scheduler(), Worker()
def update(batch):
    scheduler.update_from_output(batch, type("R", (), {"sampled_token_ids": [[1]] * len(batch.num_scheduled_tokens)})())
"""
#: Runs the fake: three requests, of which the second has a trace context.
PROGRAM = (
    _BEGIN
    + """
headers = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
for n in range(3):
    scheduler.add_request(Request(f"planted-{n}", 5 + n, 4, headers if n == 1 else None, time.time()))
while scheduler.requests:
    batch = scheduler.schedule()
    worker.execute_model(batch)
    result = worker.sample_tokens(None)
    update(batch)
print("served")
"""
)
#: Runs it with asynchronous scheduling: each batch is chosen before the results of the one before are there.
ASYNCHRONOUS = (
    _BEGIN
    + """
for n in range(3):
    scheduler.add_request(Request(f"planted-{n}", 5 + n, 2 + n, None, time.time()))
batch = scheduler.schedule()
while scheduler.requests:
    next_batch = scheduler.schedule()
    time.sleep(0.01)
    update(batch)
    batch = next_batch
time.sleep(0.01)
update(batch)
print("served")
"""
)


def write_fake_vllm(folder: Path, version: str = "0.32.0") -> None:
    """Write the package into a folder."""
    files = {"__init__.py": f"__version__ = {version!r}\n", "v1/core/sched/scheduler.py": SCHEDULER,
             "v1/worker/gpu_worker.py": WORKER}  # fmt: skip
    for name, text in files.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for parent in ("v1", "v1/core", "v1/core/sched", "v1/worker"):
        (folder / "vllm" / parent / "__init__.py").write_text("")
