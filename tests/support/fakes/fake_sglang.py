"""A fake `sglang` whose Scheduler has the methods that the adapter joins, written into a folder, and programs for it.

It has what makes the real one's accounts hard: a batch whose results come after the next was launched, prompts in
chunks, decoding requests mixed into them, retraction, a prefix cache, and requests that are cancelled.
"""

from __future__ import annotations

from pathlib import Path

SCHEDULER = """
import enum
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

class ForwardMode(enum.Enum):
    EXTEND, DECODE, IDLE = 1, 2, 3
    def is_extend(self): return self is ForwardMode.EXTEND
    def is_idle(self): return self is ForwardMode.IDLE

class Finish:
    def __init__(self, kind): self.kind = kind
    def to_json(self): return {"type": self.kind}

class SpecAlgorithm:
    def __init__(self, is_on): self.is_on = is_on
    def is_none(self): return not self.is_on

class Req:
    def __init__(self, rid, prompt, wanted, cached=0, lora_id=None, trace=None):
        self.rid, self.origin_input_ids, self.output_ids = rid, [7] * prompt, []
        self.wanted, self.cached_tokens, self.lora_id = wanted, 0, lora_id
        self.prefix, self.computed, self.finished_reason, self.to_finish = cached, 0, None, None
        self.time_stats = SimpleNamespace(trace_ctx=SimpleNamespace(_root_span_carrier=trace))
    def finished(self): return self.finished_reason is not None

@dataclass
class ScheduleBatch:
    reqs: list
    forward_mode: ForwardMode = ForwardMode.DECODE
    extend_lens: list = None
    decoding_reqs: list = None
    chunked_req: object = None
    spec_algorithm: object = field(default_factory=lambda: SpecAlgorithm(False))
    def copy(self):  # as the real one: attributes that are no fields are lost
        return ScheduleBatch(self.reqs[:], self.forward_mode, self.extend_lens, self.decoding_reqs)

@dataclass
class GenerationBatchResult:
    delay_sample_func: object = None

class Pool:
    def available_size(self): return 600

class Tree:
    def evictable_size(self): return 200

class Scheduler:
    CHUNK = 8

    def __init__(self, **settings):
        given = {"served_model_name": None, "model_path": "/secret-folder/tiny", "pp_size": 1,
                 "disaggregation_mode": "null", "grammar": False, **settings}
        self.server_args = SimpleNamespace(**given)
        self.waiting_queue, self.running, self.chunked_req, self.last_batch = [], [], None, None
        self.attn_tp_rank, self.enable_overlap, self.forward_stream = settings.get("rank", 0), True, None
        self.page_size, self.max_total_num_tokens = 4, 1000
        self.token_to_kv_pool_allocator, self.tree_cache = Pool(), Tree()
        lora = SimpleNamespace(lora_refs={"f00": SimpleNamespace(lora_name="legal")})
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(lora_manager=lora))
        self.model_worker = SimpleNamespace(speculative_num_draft_tokens=3)
        self.result_queue, self.retract_at, self.forwards, self.only_decodes = deque(), -1, 0, False
        self.spec = SpecAlgorithm(bool(settings.get("speculative")))

    def _add_request_to_queue(self, req, is_retracted=False):
        if len(self.waiting_queue) < 10:
            self.waiting_queue.append(req)

    def abort_request(self, recv_req):
        self.waiting_queue = [req for req in self.waiting_queue if req.rid != recv_req]
        for req in self.running:
            if req.rid == recv_req:
                req.to_finish = Finish("abort")
        if self.chunked_req is not None and self.chunked_req.rid == recv_req:
            self.chunked_req.finished_reason, self.chunked_req = Finish("abort"), None

    def get_next_batch_to_run(self, running_batch=None, last_batch=None):
        self.running = [req for req in self.running if not req.finished()]
        reqs, lens, room = [], [], self.CHUNK
        prompts = ([self.chunked_req] if self.chunked_req else []) + self.waiting_queue
        for req in [] if self.only_decodes else prompts:
            total = len(req.origin_input_ids) + len(req.output_ids)
            if not req.computed:
                req.computed = req.cached_tokens = req.prefix
            count = min(total - req.computed, room)
            if count > 0:
                reqs.append(req)
                lens.append(count)
                req.computed += count
                room -= count
        if not self.only_decodes:
            self.chunked_req = next((r for r in reqs if r.computed < len(r.origin_input_ids) + len(r.output_ids)), None)
        self.waiting_queue = [req for req in self.waiting_queue if req not in reqs]
        if reqs:
            decoding = list(self.running)
            self.running += [req for req in reqs if req is not self.chunked_req]
            return ScheduleBatch(reqs + decoding, ForwardMode.EXTEND, lens + [1] * len(decoding), decoding,
                                 self.chunked_req, self.spec)
        if not self.running:
            return None
        batch = ScheduleBatch(list(self.running), spec_algorithm=self.spec)
        self.update_running_batch(batch)
        return batch if batch.reqs else None

    def update_running_batch(self, batch):
        if self.forwards == self.retract_at and len(batch.reqs) > 1:
            lost = batch.reqs.pop()
            self.running.remove(lost)
            lost.computed, lost.prefix = 0, 0
            if lost.rid.endswith("given-up"):
                lost.to_finish = Finish("abort")
            else:
                self._add_request_to_queue(lost, is_retracted=True)
        return batch

    def run_batch(self, batch, pp_proxy_tensors=None):
        self.forwards += 1
        work = self.forward_stream.work if self.forward_stream else (lambda ms: None)
        work(5)
        return GenerationBatchResult((lambda: work(2)) if self.server_args.grammar else None)

    def launch_batch_sample_if_needed(self, batch_result, cur_batch=None):
        if batch_result is not None and batch_result.delay_sample_func is not None:
            batch_result.delay_sample_func()
            batch_result.delay_sample_func = None

    def process_batch_result(self, batch, result):
        for req in batch.reqs:
            if req.finished() or req is batch.chunked_req or req.computed < len(req.origin_input_ids):
                continue
            req.output_ids.append(7)
            if req.to_finish or len(req.output_ids) >= req.wanted:
                req.finished_reason = req.to_finish or Finish("length")

    def step(self):
        batch = self.get_next_batch_to_run()
        result = self.run_batch(batch) if batch else None
        if batch:
            self.result_queue.append((batch.copy(), result))
        if self.last_batch:
            self.process_batch_result(*self.result_queue.popleft())
        self.launch_batch_sample_if_needed(result, batch)
        self.last_batch = batch
        return bool(batch or self.result_queue or self.waiting_queue)
"""
START = """
import time
from sglang.srt.managers.scheduler import Req, Scheduler
def serve(scheduler):
    while scheduler.step():
        time.sleep(0.002)
"""
#: A fake torch whose GPU works in one stream, at once: 5 ms a forward pass, and 2 ms for sampling that is put off.
GPU = f"""{START}
import sys
from types import SimpleNamespace
class Stream:
    now = 0
    def work(self, ms): self.now += ms
class Event:
    def __init__(self, enable_timing): pass
    def record(self, stream=None): self.at = stream.now
    def query(self): return True
    def elapsed_time(self, other): return other.at - self.at
cuda = SimpleNamespace(Event=Event, is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: 0,
                       is_current_stream_capturing=lambda: False)
sys.modules["torch"] = SimpleNamespace(cuda=cuda)
"""
#: Three requests: with a prefix that was cached, in chunks with an adapter, and with a trace context.
PROGRAM = f"""{START}
scheduler = Scheduler()
trace = {{"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}}
scheduler._add_request_to_queue(Req("planted-0", 6, 4, cached=2))
scheduler._add_request_to_queue(Req("planted-1", 20, 4, lora_id="f00"))
scheduler._add_request_to_queue(Req("planted-2", 5, 6, trace=trace))
serve(scheduler)
print("served")
"""
#: Each way in which a request leaves: retracted, given up, cancelled in the queue, between chunks, while it decodes.
LEAVING = f"""{START}
scheduler = Scheduler()
scheduler._add_request_to_queue(Req("stays", 2, 30))
scheduler._add_request_to_queue(Req("retracted", 2, 8))
for at in range(4):
    scheduler.step()
scheduler.retract_at = scheduler.forwards
for at in range(4):
    scheduler.step()
scheduler._add_request_to_queue(Req("given-up", 2, 30))
for at in range(3):
    scheduler.step()
scheduler.running.sort(key=lambda req: req.rid == "given-up")
scheduler.retract_at = scheduler.forwards
scheduler.step()
scheduler._add_request_to_queue(Req("chunks", 40, 3))
scheduler._add_request_to_queue(Req("in-queue", 2, 3))
scheduler.step()
scheduler.abort_request("in-queue")
scheduler.abort_request("chunks")
scheduler.step()
scheduler.abort_request("stays")
serve(scheduler)
print("served")
"""
#: A prompt that is cancelled while others decode between two of its chunks.
CANCELLED_CHUNKS = f"""{START}
scheduler = Scheduler()
scheduler._add_request_to_queue(Req("stays", 2, 40))
scheduler.step()
scheduler._add_request_to_queue(Req("chunks", 40, 3))
scheduler.step()
scheduler.only_decodes = True
for at in range(3):
    scheduler.step()
scheduler.abort_request("chunks")
scheduler.step()
serve(scheduler)
print("served")
"""


def write_fake_sglang(folder: Path, version: str = "0.5.23") -> None:
    """Write the package into a folder."""
    package = folder / "sglang"
    managers = package / "srt" / "managers"
    managers.mkdir(parents=True)
    for parent in (package / "srt", managers):
        (parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (managers / "scheduler.py").write_text(SCHEDULER)
