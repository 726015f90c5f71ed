"""Messages of an inference engine's process to its recording process. Standard library only.

A message is one datagram, its first byte the kind:

    J   an event: a JSON object with the key "event"; "attached" comes first
    R   a request begins: JSON, the facts of gpu.request.v1 that are known then
    T   requests got their first token: FIRST, then the numbers of the requests
    E   a request ends: JSON
    I   an iteration is over: ITERATION, then pairs (request, tokens), then pairs (request, tokens of its prompt)
    G   GPU times: GPU for each iteration
    L   messages that were not sent: LOST

Requests have numbers (1, 2, ...), so that an iteration of 256 requests has 2 kB. Nothing of a prompt or an answer is in
any of them.
"""

from __future__ import annotations

import struct

#: Phases of iterations, as in gpu.iteration.v1; a message has the position.
PHASES = ("prefill", "decode", "mixed", "speculative", "other")
#: Bits of an iteration's flags: its requests and tokens are those of the message before; its GPU time follows.
SAME_BATCH, GPU_FOLLOWS = 1, 2
#: b"I", flags, phase, number, start (ns since the epoch), duration, gap, schedule (ns), output and drafted tokens,
#: blocks used, blocks in all, waiting requests, preempted requests, requests, requests with tokens of their prompt.
ITERATION = struct.Struct("<cBB9qiiII")
#: b"T", time (ns since the epoch).
FIRST = struct.Struct("<cq")
#: Iteration, GPU time, GPU idle time before it (ns; -1 = not known).
GPU = struct.Struct("<qqq")
#: b"L", iterations, messages about requests.
LOST = struct.Struct("<cqq")
#: Roles: an engine chooses the batch, and may run it too; a worker runs what an engine in another process chose.
ENGINE, WORKER = "engine", "worker"
#: Longest message: an iteration of 8,000 requests.
MESSAGE_BYTES = 1 << 17
