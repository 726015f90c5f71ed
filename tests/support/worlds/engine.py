"""A max-plus engine: an operation begins when its rank is free, and ends once all that it needs has come.

All replicas and tensor ranks of a stage do the same, so each operation is computed of a whole stage: arrays [data,
tensor]. The same seed gives the same durations with and without a slowed rank, so the difference of two runs is what
that rank cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from support.worlds.durations import PASSES, drawn
from support.worlds.layout import Exchange, Message, Pass, Slowed, World, schedule

Times = np.ndarray
#: Name of a communicator, of a rank's place in its stage: (data, tensor) -> name.
Named = Callable[[int, int], str]
#: Time that launching costs where nothing is waited for; ns.
LAUNCH_NS = 5_000


class Logged(NamedTuple):
    """An operation of all ranks of a stage; times are ns, [data, tensor]. `operation`: "" = compute."""

    step: int
    operation: str
    named: Named | None
    call: Times
    start: Times
    end: Times


@dataclass
class Run:
    """Holds what all ranks did.

    Attributes:
        logs: of each stage, in the order of launches.
        bounds: [steps + 1, stages, data, tensor] ns, when each rank began a step.
        kernels: [steps, stages, data, tensor] kernels of each rank.
    """

    world: World
    logs: list[list[Logged]]
    bounds: np.ndarray
    kernels: np.ndarray

    def time_ns(self, first: int, last: int) -> float:
        """Return the time that the job took for steps first..last."""
        ends = self.bounds.reshape(len(self.bounds), -1).max(1)
        return float(ends[last + 1] - ends[first])


@dataclass
class _Stage:
    """The state of a stage.

    Attributes:
        host: when its hosts launch the next communication: with the compute before it.
        computes: it has computed since its last communication.
    """

    now: Times
    host: Times
    computes: bool = False
    log: list[Logged] = field(default_factory=list)

    def meet(self, step: int, operation: str, named: Named, end: Times) -> None:
        call = np.minimum(self.host, self.now)
        self.log.append(Logged(step, operation, named, call, self.now.copy(), end))
        self.host, self.now, self.computes = self.now, end, False

    def compute(self, step: int, work: Times, idle: Times) -> None:
        begin = self.now + idle
        self.host = self.host if self.computes else begin
        self.now, self.computes = begin + work, True
        self.log.append(Logged(step, "", None, self.host, begin, self.now))


def run(world: World, steps: int, slowed: tuple[Slowed, ...] = (), seed: int = 0) -> Run:
    """Return what the ranks of a world do in some steps."""
    stages = [_Stage(*np.zeros((2, world.data, world.tensor))) for _ in range(world.pipeline)]
    shape = steps, world.pipeline, world.data, world.tensor
    bounds, kernels = np.zeros((steps + 1, *shape[1:])), np.full(shape, 1000.0)
    for rank, ratio in world.kernels:
        kernels[(slice(None), *world.place(rank))] *= ratio
    for step in range(steps):
        passes, idle = _durations(world, step, seed)
        for fault in (fault for fault in slowed if fault.hits(step)):
            stage, *place = world.place(fault.rank)
            at = (stage, slice(None), slice(None), *place)
            if fault.kind == "host":
                idle[at] += passes[at] * (fault.factor - 1.0)
            else:
                passes[at] *= fault.factor
            if fault.kind == "work":
                kernels[(step, stage, *place)] *= fault.factor
        _step(world, step, stages, passes, idle)
        bounds[step + 1] = [stage.now for stage in stages]
    return Run(world, [stage.log for stage in stages], np.rint(bounds), kernels)


def true_share(world: World, steps: int, slowed: tuple[Slowed, ...], first: int, last: int, seed: int = 0) -> float:
    """Return the part of the time of steps first..last that would not have passed without the slowed ranks."""
    with_fault, without = run(world, steps, slowed, seed), run(world, steps, (), seed)
    return 1.0 - without.time_ns(first, last) / with_fault.time_ns(first, last)


def _durations(world: World, step: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return time of passes and idle time before them; ns, [stages, passes, batches, data, tensor]."""
    random = np.random.default_rng([seed, step])
    shape = world.microbatches, world.data, 1
    passes = np.zeros((world.pipeline, len(PASSES), world.microbatches, world.data, world.tensor))
    for stage in range(world.pipeline):
        for number, name in enumerate(PASSES):
            work = drawn(world.table, stage, name, random, shape) * world.weight(stage) * world.pass_ns
            passes[stage, number] = work * (1.0 + world.jitter * random.standard_normal(shape))
    passes *= 1.0 + 0.003 * random.standard_normal(passes.shape)
    return passes, np.zeros(passes.shape)


def _step(world: World, step: int, stages: list[_Stage], passes: np.ndarray, idle: np.ndarray) -> None:
    for number, stage in enumerate(stages):
        if world.data > 1:
            _reduce(world, step, number, stage, "AllGather")
    programs = [schedule(world, number) for number in range(world.pipeline)]
    position, arrivals = [0] * world.pipeline, dict[Message, Times]()
    posted = set[int]()
    while any(at < len(program) for at, program in zip(position, programs, strict=True)):
        for number, stage in enumerate(stages):
            while position[number] < len(programs[number]):
                part = programs[number][position[number]]
                if isinstance(part, Pass):
                    at = number, PASSES.index(part.name), part.batch
                    _compute(world, step, number, stage, passes[at], idle[at])
                elif not _exchange(world, step, stage, part, arrivals, number in posted):
                    posted.add(number)
                    break
                posted.discard(number)
                position[number] += 1
    first, last = stages[0], stages[-1]
    if world.loss_all_reduce and world.data > 1:
        _reduce(world, step, world.pipeline - 1, last, "AllReduce")
    if world.tied_embeddings and world.pipeline > 1:
        end = np.maximum(first.now, last.now) + world.transfer_ns
        for stage in (first, last):
            stage.meet(step, "AllReduce", lambda data, tensor: f"embedding {data} {tensor}", end)
    for number, stage in enumerate(stages):
        if world.data > 1:
            _reduce(world, step, number, stage, "ReduceScatter")
    if world.norm_all_reduce:
        end = np.max([stage.now for stage in stages]) + world.transfer_ns
        for stage in stages:
            stage.meet(step, "AllReduce", lambda data, tensor: "world", np.full(stage.now.shape, end))


def _reduce(world: World, step: int, number: int, stage: _Stage, operation: str) -> None:
    """Reduce or gather over the data dimension."""
    end = np.broadcast_to(stage.now.max(0, keepdims=True) + world.transfer_ns, stage.now.shape).copy()
    stage.meet(step, operation, lambda data, tensor: f"data {number} {tensor}", end)


def _compute(world: World, step: int, number: int, stage: _Stage, work: Times, idle: Times) -> None:
    """Compute a pass in two halves, with an all-reduce after each and an exchange of tokens around the second."""

    def tensor_reduce() -> None:
        if world.tensor > 1:
            end = np.broadcast_to(stage.now.max(1, keepdims=True) + world.transfer_ns, stage.now.shape).copy()
            stage.meet(step, "AllReduce", lambda data, tensor: f"tensor {number} {data}", end)

    def exchange_tokens() -> None:
        if world.expert > 1:
            groups = stage.now.reshape(-1, world.expert, world.tensor)
            end = np.broadcast_to(groups.max(1, keepdims=True) + world.transfer_ns, groups.shape)
            named = lambda data, tensor: f"expert {number} {data // world.expert} {tensor}"  # noqa: E731
            stage.meet(step, "AllToAll", named, end.reshape(stage.now.shape).copy())

    stage.compute(step, work / 2, idle)
    tensor_reduce()
    exchange_tokens()
    stage.compute(step, work / 2, np.zeros(work.shape))
    exchange_tokens()
    tensor_reduce()


def _exchange(
    world: World, step: int, stage: _Stage, part: Exchange, arrivals: dict[Message, Times], is_posted: bool
) -> bool:
    """Send, and receive if all has been sent; return whether it has. `is_posted`: it was sent before."""
    if not is_posted:
        arrivals |= dict.fromkeys(part.sent, stage.now + world.transfer_ns)
    if not all(message in arrivals for message in part.received):
        return False
    end = stage.now + (world.transfer_ns if part.sent else LAUNCH_NS)
    for message in part.received:
        end = np.maximum(end, arrivals[message])
    begin, host = stage.now, stage.host
    for messages, operation in ((part.sent, "Send"), (part.received, "Recv")):
        for message in messages:
            stage.now, stage.host = begin, host  # they begin and end together
            stage.meet(step, operation, _pair(min(message.source, message.target)), end)
    return True


def _pair(first: int) -> Named:
    return lambda data, tensor: f"pair {first} {data} {tensor}"
