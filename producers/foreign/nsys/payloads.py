"""NCCL's NVTX payloads in an export: communicator, size and peer of each call, and the rank of a process.

A payload is NVTX_EVENTS.binaryData: a header of 32 bytes (u32 domain, 4 bytes, u32 schema, 4 bytes, u64 size, 8 bytes)
and NCCL's struct. It is there if blobs were exported; NVTX_PAYLOAD_SCHEMA_ENTRIES names the fields of each schema.
"""

from __future__ import annotations

import struct
from collections import defaultdict

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl.kernel_names import payload_fields
from drumline.producers.foreign.nsys.activity_tables import PUSH_POP, RANGES, START_END, THREAD_BITS
from drumline.producers.foreign.nsys.database import NsysDatabase
from drumline.schemas.columns import Array

_HEADER = struct.Struct("<II II QQ")
_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_COMMUNICATOR, _RANKS, _RANK = "NCCL communicator ID", "No. of ranks", "Rank"
#: The structs of NCCL's calls have at most so many bytes; larger blobs are other tools'.
_LARGEST = 256


def payloads(database: NsysDatabase, process: int, rows: Array) -> tuple[Table, tuple[int, int] | None]:
    """Return the payloads of a process's NCCL calls (see Activity), and its (rank, world size) where NCCL told it.

    `rows`: of NVTX_EVENTS, in the order of the markers' ids. The world is the largest communicator that was made.
    """
    known = _schemas(database)
    place: tuple[int, int] | None = None
    at, blobs = [], []
    if known and database.has_columns(RANGES, "binaryData"):
        where = f"eventType IN ({PUSH_POP}, {START_END}) AND (globalTid >> {THREAD_BITS}) = ?"
        query = f"SELECT rowid, binaryData FROM {RANGES} WHERE binaryData IS NOT NULL AND {where}"
        for row, blob in database.iterate(query, (process >> THREAD_BITS,)):
            if not isinstance(blob, bytes) or not _HEADER.size < len(blob) <= _LARGEST:
                continue
            domain, _, schema, _, size, _ = _HEADER.unpack_from(blob)
            fields, body = known.get((domain, schema)), blob[_HEADER.size :]
            if fields is None or size > len(body):
                continue
            at.append(row)
            blobs.append(body[:size])
            if _RANKS in fields and _RANK in fields:
                place = max(place, _place(body, fields), key=lambda known: known[1] if known else 0)
    order = np.argsort(rows, kind="stable")
    position = np.searchsorted(rows, at, sorter=order) if len(rows) else np.empty(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(blob) for blob in blobs], dtype=np.int64)])
    communicator, size_bytes, peer, valid = payload_fields(b"".join(blobs), offsets)
    if len(rows):
        position = np.minimum(position, len(rows) - 1)
        valid &= rows[order[position]] == at
        ids = order[position] + 1
    else:
        ids, valid = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    columns = {"id": ids.astype(np.uint32), "communicator": communicator, "bytes": size_bytes, "peer": peer}
    return Table(columns).take(valid), place


def _schemas(database: NsysDatabase) -> dict[tuple[int, int], dict[str, int]]:
    """Return (domain, schema) -> name of a field -> its offset, of the schemas that begin with NCCL's communicator."""
    if not database.has_columns(_ENTRIES, "domainId", "schemaId", "name", "offset"):
        return {}
    out: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for domain, schema, name, offset in database.iterate(f"SELECT domainId, schemaId, name, offset FROM {_ENTRIES}"):
        out[(domain, schema)][str(name)] = int(offset or 0)
    return {key: fields for key, fields in out.items() if fields.get(_COMMUNICATOR) == 0}


def _place(body: bytes, fields: dict[str, int]) -> tuple[int, int] | None:
    """Return (rank, ranks) of a communicator; None where the struct is too short or they are impossible."""
    if max(fields[_RANK], fields[_RANKS]) + 4 > len(body):
        return None
    (rank,), (ranks,) = (struct.unpack_from("<i", body, fields[name]) for name in (_RANK, _RANKS))
    return (rank, ranks) if 0 <= rank < ranks else None
