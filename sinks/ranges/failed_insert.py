"""Decide what becomes of a range whose insert ClickHouse answers with an error (docs/design/exactly-once.md).

Fewer rows need less memory, and without the one record that a table cannot take the others can be stored. So a range
is split until it has one record, which becomes a dead letter. The insert that failed must not succeed afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from drumline.infra.clickhouse.error_codes import ErrorCode

#: Codes that are about values, not about the server: not parseable, out of range, too long, against a constraint.
VALUES = frozenset(
    {
        ErrorCode.CANNOT_PARSE_TEXT,
        ErrorCode.CANNOT_PARSE_INPUT_ASSERTION_FAILED,
        ErrorCode.CANNOT_PARSE_DATE,
        ErrorCode.CANNOT_PARSE_DATETIME,
        ErrorCode.ARGUMENT_OUT_OF_BOUND,
        ErrorCode.CANNOT_CONVERT_TYPE,
        ErrorCode.CANNOT_PARSE_NUMBER,
        ErrorCode.INCORRECT_DATA,
        ErrorCode.TOO_LARGE_ARRAY_SIZE,
        ErrorCode.TOO_LARGE_STRING_SIZE,
        ErrorCode.VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE,
        ErrorCode.CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN,
        ErrorCode.DECIMAL_OVERFLOW,
        ErrorCode.VIOLATED_CONSTRAINT,
        ErrorCode.UNKNOWN_ELEMENT_OF_ENUM,
    }
)
#: Bytes of a block below which a server that is out of memory is at fault, not the block.
LARGE_BLOCK = 4 << 20
#: Attempts, and time since the first, after which a single record is too large for the server; s.
MEMORY_ATTEMPTS, MEMORY_S = 5, 10.0
#: Attempts, and time since the first, after which rollups that ClickHouse does not fill are given up; s. Memory that
#: merges and queries take is free again by then.
ROLLUP_ATTEMPTS, ROLLUP_S = 5, 60.0
#: How long an insert without an answer, of this process or of its predecessor, may still succeed in ClickHouse; s.
IN_FLIGHT_S = 60.0


class Action(Enum):
    """Names what to do with a rejected range. `DIVIDE`: split it; a single record becomes a dead letter."""

    RETRY = "retry"
    DIVIDE = "divide"


@dataclass(slots=True)
class InsertRejection:
    """Describes the last error of a range. `since`: when the first came (monotonic, s). `block_bytes`: of its rows."""

    code: int
    since: float
    block_bytes: int
    attempts: int = 1


def decide(rejection: InsertRejection, records: int, *, in_flight: bool, now: float) -> Action:
    """Return what to do with a rejected range of so many records.

    `in_flight`: another insert of the range may have no answer yet.
    """
    waited = now - rejection.since
    if in_flight and waited < IN_FLIGHT_S:
        return Action.RETRY
    if rejection.code in VALUES:
        return Action.DIVIDE
    if rejection.code != ErrorCode.MEMORY_LIMIT_EXCEEDED or rejection.block_bytes < LARGE_BLOCK:
        return Action.RETRY
    tried = rejection.attempts >= MEMORY_ATTEMPTS and waited >= MEMORY_S
    return Action.DIVIDE if records > 1 or tried else Action.RETRY


def gives_up_rollups(rejection: InsertRejection, now: float) -> bool:
    """Return whether a range whose rows are all stored goes on without the rollups that ClickHouse failed to fill.

    Until then it is inserted again: under its token that fills them, and doubles nothing.
    """
    if rejection.code in VALUES:
        return True
    return rejection.attempts >= ROLLUP_ATTEMPTS and now - rejection.since >= ROLLUP_S
