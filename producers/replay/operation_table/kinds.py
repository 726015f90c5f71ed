"""Types of operations in a table, and the group of ranks that each of them takes place in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from drumline.producers.derive.nccl import kernel_names as nccl


class Scope(Enum):
    """Names the ranks that take part in an operation."""

    COMPUTE = "the rank itself, on its GPU"
    HOST = "the rank itself, on its host"
    DATA = "ranks of one stage that have replicas of the same parameters"
    TENSOR = "ranks that share the layers of one stage"
    EMBEDDING = "the first and the last stage of one pipeline"
    NEXT_STAGE = "the rank and that of the next stage"
    PREVIOUS_STAGE = "the rank and that of the stage before"
    WORLD = "all ranks"


#: Scopes of sends and receives.
NEIGHBOURS = frozenset({Scope.NEXT_STAGE, Scope.PREVIOUS_STAGE})
#: Scopes without communication.
WITHOUT_PEERS = frozenset({Scope.COMPUTE, Scope.HOST})


@dataclass(frozen=True)
class OperationKind:
    """Describes a type of operation. `operation`: as in gpu.collective.v1, "" for one without communication."""

    scope: Scope
    operation: str = ""

    @property
    def code(self) -> int:
        """Return the index of the operation in the dictionary of gpu.collective.v1."""
        return nccl.OPERATIONS.index(self.operation)


#: optype -> kind. Megatron clips gradients by their norm over all ranks, so that operation ends with an all-reduce.
KINDS: Mapping[str, OperationKind] = {
    "forward-compute": OperationKind(Scope.COMPUTE),
    "backward-compute": OperationKind(Scope.COMPUTE),
    "optimizer": OperationKind(Scope.COMPUTE),
    "gc": OperationKind(Scope.HOST),
    "forward-send": OperationKind(Scope.NEXT_STAGE, "Send"),
    "forward-recv": OperationKind(Scope.PREVIOUS_STAGE, "Recv"),
    "backward-send": OperationKind(Scope.PREVIOUS_STAGE, "Send"),
    "backward-recv": OperationKind(Scope.NEXT_STAGE, "Recv"),
    "params-all-gather": OperationKind(Scope.DATA, "AllGather"),
    "grads-reduce-scatter": OperationKind(Scope.DATA, "ReduceScatter"),
    "grads-all-reduce": OperationKind(Scope.DATA, "AllReduce"),
    "loss-all-reduce": OperationKind(Scope.DATA, "AllReduce"),
    "layernorm-grads-all-reduce": OperationKind(Scope.TENSOR, "AllReduce"),
    "embedding-grads-all-reduce": OperationKind(Scope.EMBEDDING, "AllReduce"),
    "optimizer-clip-main-grad": OperationKind(Scope.WORLD, "AllReduce"),
}
#: Operations that send -> those that receive the same.
RECEIVED_AS: Mapping[str, str] = {"forward-send": "forward-recv", "backward-send": "backward-recv"}
