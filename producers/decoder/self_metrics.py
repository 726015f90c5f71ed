"""What collecting cost so far, and what it could not do: `collector` of gpu.process.v1."""

from __future__ import annotations

import time
from collections.abc import Mapping

from drumline.producers.ipc import buffer_pool as pool_words


def cost(words: memoryview, counts: Mapping[str, float], problems: Mapping[str, str], began_ns: int) -> dict[str, str]:
    """As text. `words`: of the buffer pool; `counts`: the decoder's own, which began at `began_ns`; `problems`: short
    name -> sentence."""
    numbers: dict[str, float] = {
        **counts,
        "decoder_s": (time.time_ns() - began_ns) / 1e9,
        "buffers": words[pool_words.COMPLETED],
        "buffers_refused": words[pool_words.REFUSED],
        "records_dropped": words[pool_words.CUPTI_DROPPED],
        "foreign_buffers": words[pool_words.FOREIGN],
        "events_lost": words[pool_words.EVENTS_LOST],
        "callback_s": words[pool_words.CALLBACK_NS] / 1e9,
        "callback_max_s": words[pool_words.CALLBACK_MAX_NS] / 1e9,
        "flush_max_s": words[pool_words.FLUSH_NS] / 1e9,
        "job_thread_cpu_s": words[pool_words.THREAD_NS] / 1e9,
        "decoder_cpu_s": time.process_time(),
    }
    text = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in numbers.items()}
    return {**text, **{f"problem: {name}": sentence for name, sentence in problems.items()}}
