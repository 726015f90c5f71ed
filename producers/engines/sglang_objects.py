"""Readings of SGLang's scheduler, batches and requests. Standard library only; nothing of sglang is imported.

Versions keep some of it in different places. What is missing is not known: -1, or "".
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from drumline.producers.ipc.events import warn


def plain_mode(scheduler: Any) -> bool:
    """Return whether one forward pass of one process is an iteration; if not, warn that nothing is recorded."""
    settings = scheduler.server_args
    modes = {
        "pipeline parallelism": (getattr(settings, "pp_size", 1) or 1) > 1,
        "separate processes for prefill and decode": getattr(settings, "disaggregation_mode", "null") != "null",
        "a diffusion language model": getattr(settings, "dllm_algorithm", None) is not None,
        "split prefills": bool(getattr(settings, "enable_pdmux", False)),
    }  # fmt: skip
    for mode, is_used in modes.items():
        if is_used:
            warn(f"iterations and requests are not recorded: sglang with {mode} is not known")
            return False
    return True


def ranks(scheduler: Any) -> list[int]:
    """Return the ranks of this process in the group that has the same requests; all 0 = the one that answers them."""
    holder = scheduler
    if not hasattr(holder, "attn_tp_rank"):
        holder = getattr(scheduler, "ps", None)
    if holder is None:
        holder = sys.modules[type(scheduler).__module__].get_parallel()
    return [int(holder.attn_tp_rank), int(getattr(holder, "attn_cp_rank", 0) or 0)]


def batch_tokens(scheduler: Any, batch: Any) -> tuple[dict[str, int], dict[str, int], int]:
    """Return tokens by request, those of prompts among them, and drafted tokens (-1 = none are drafted)."""
    if batch.forward_mode.is_extend():
        tokens = {request.rid: int(batch.extend_lens[at]) for at, request in enumerate(batch.reqs)}
        decoding = {request.rid for request in batch.decoding_reqs or ()}
        return tokens, {name: count for name, count in tokens.items() if name not in decoding}, -1
    if batch.forward_mode.is_idle():  # another rank has a batch
        return {}, {}, -1
    count = 1
    if not batch.spec_algorithm.is_none():
        count = int(getattr(scheduler.model_worker, "speculative_num_draft_tokens", 0) or 1)
    return {request.rid: count for request in batch.reqs}, {}, (count - 1) * len(batch.reqs) if count > 1 else -1


def kv_blocks(scheduler: Any) -> tuple[int, int]:
    """Return pages of the KV pool, and those in use; what the prefix cache may give away is not in use."""
    with suppress(AttributeError, TypeError, ValueError, NotImplementedError):
        size, total = max(int(scheduler.page_size), 1), int(scheduler.max_total_num_tokens)
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        return total // size, max(total - int(free), 0) // size
    return -1, -1


def model_name(scheduler: Any) -> str:
    """Return the model's name without its folder."""
    settings = scheduler.server_args
    return str(settings.served_model_name or settings.model_path).rstrip("/").rpartition("/")[2]


def adapter_name(scheduler: Any, request: Any) -> str:
    """Return the name of a request's LoRA adapter; "" without one."""
    if request.lora_id is None:
        return ""
    with suppress(AttributeError, KeyError):
        return str(scheduler.tp_worker.model_runner.lora_manager.lora_refs[request.lora_id].lora_name)
    return str(request.lora_id)


def traceparent(request: Any) -> str:
    """Return the trace context of a request where SGLang traces, from 0.5.10: its own span, below the caller's."""
    trace = getattr(getattr(request, "time_stats", None), "trace_ctx", None)
    carrier = getattr(trace, "_root_span_carrier", None)
    with suppress(Exception):
        if not carrier and (context := getattr(trace, "root_span_context", None)) is not None:
            carrier = {}
            sys.modules["opentelemetry.propagate"].inject(carrier, context)
    return str((carrier or {}).get("traceparent", ""))


def outcome(request: Any) -> str:
    """Return why a request ended: stop, length or abort."""
    with suppress(Exception):
        return str(request.finished_reason.to_json()["type"])
    return type(request.finished_reason).__name__.lower()
