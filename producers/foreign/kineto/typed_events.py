"""Events of a Kineto file as typed structures: fields that nothing reads are skipped without a Python object."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Numbers beyond these belong to no trace; int64 holds them.
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
#: Ids that are numbers of CUDA and texts of HIP.
Id = Whole | str | None


class Args(msgspec.Struct, gc=False):
    """Holds the arguments of an event, of those kinds that are read."""

    correlation: Whole | None = None
    device: Whole | None = None
    stream: Id = None
    grid: tuple[Whole, ...] | None = None
    block: tuple[Whole, ...] | None = None
    registers: Whole | None = msgspec.field(name="registers per thread", default=None)
    shared: Whole | None = msgspec.field(name="shared memory", default=None)
    bytes: Id = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    elements: Whole | None = msgspec.field(name="In msg nelems", default=None)
    dtype: str | None = None
    group_name: Id = msgspec.field(name="Process Group Name", default=None)
    group_id: Id = msgspec.field(name="Process Group ID", default=None)
    group_ranks: str | list[Whole] | None = msgspec.field(name="Process Group Ranks", default=None)


class Event(msgspec.Struct, gc=False):
    """Holds one event of the array `traceEvents`; times are us."""

    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


class GroupConfig(msgspec.Struct):
    """Holds one process group of `distributedInfo`."""

    pg_name: Id = None
    ranks: list[Whole] | None = None


class DistributedInfo(msgspec.Struct):
    """Holds what a file states about the job."""

    rank: Whole | None = None
    world_size: Whole | None = None
    nccl_version: str | None = None
    pg_config: list[GroupConfig] | None = None


class Device(msgspec.Struct):
    """Holds one GPU of `deviceProperties`."""

    id: Whole | None = None
    name: str | None = None


class FileInfo(msgspec.Struct, rename="camel"):
    """Holds what stands before and behind the events of a file."""

    schema_version: Id = None
    distributed_info: DistributedInfo | None = None
    device_properties: list[Device] | None = None
    base_time_nanoseconds: Whole | None = None
    host_name: str | None = msgspec.field(name="host_name", default=None)
