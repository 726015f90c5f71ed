"""Split a rejected range for its rows, and repeat it for the server."""

import pytest

from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.sinks.ranges.failed_insert import (
    IN_FLIGHT_S,
    LARGE_BLOCK,
    MEMORY_ATTEMPTS,
    MEMORY_S,
    ROLLUP_ATTEMPTS,
    ROLLUP_S,
    Action,
    InsertRejection,
    decide,
    gives_up_rollups,
)

RETRY, DIVIDE = Action.RETRY, Action.DIVIDE
CONSTRAINT, OUT_OF_MEMORY = ErrorCode.VIOLATED_CONSTRAINT, ErrorCode.MEMORY_LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("code", "size", "records", "attempts", "waited", "action"),
    [
        (CONSTRAINT, 100, 10, 1, 0.0, DIVIDE),
        (CONSTRAINT, 100, 1, 1, 0.0, DIVIDE),
        (ErrorCode.TOO_MANY_PARTS, LARGE_BLOCK, 10, 99, 999.0, RETRY),
        (OUT_OF_MEMORY, LARGE_BLOCK, 2, 1, 0.0, DIVIDE),
        (OUT_OF_MEMORY, LARGE_BLOCK - 1, 2, 99, 999.0, RETRY),  # so little fits, unless the server is at its limit
        (OUT_OF_MEMORY, LARGE_BLOCK, 1, MEMORY_ATTEMPTS - 1, MEMORY_S, RETRY),
        (OUT_OF_MEMORY, LARGE_BLOCK, 1, MEMORY_ATTEMPTS, MEMORY_S - 1, RETRY),
        (OUT_OF_MEMORY, LARGE_BLOCK, 1, MEMORY_ATTEMPTS, MEMORY_S, DIVIDE),
    ],
)
def test_a_range_is_split_only_for_its_rows(code, size, records, attempts, waited, action):
    rejection = InsertRejection(code, 5.0, size, attempts)
    assert decide(rejection, records, in_flight=False, now=5.0 + waited) is action


def test_nothing_is_split_while_another_insert_of_the_range_may_succeed():
    rejection = InsertRejection(CONSTRAINT, 5.0, 100)
    assert decide(rejection, 2, in_flight=True, now=5.0 + IN_FLIGHT_S - 1) is RETRY
    assert decide(rejection, 2, in_flight=True, now=5.0 + IN_FLIGHT_S) is DIVIDE


@pytest.mark.parametrize(
    ("code", "attempts", "waited", "gives_up"),
    [
        (CONSTRAINT, 1, 0.0, True),  # the same rows will not be taken either
        (OUT_OF_MEMORY, ROLLUP_ATTEMPTS, ROLLUP_S - 1, False),
        (OUT_OF_MEMORY, ROLLUP_ATTEMPTS - 1, ROLLUP_S, False),
        (OUT_OF_MEMORY, ROLLUP_ATTEMPTS, ROLLUP_S, True),
    ],
)
def test_rollups_are_given_up_for_their_values_and_not_before_memory_is_free_again(code, attempts, waited, gives_up):
    assert gives_up_rollups(InsertRejection(code, 5.0, LARGE_BLOCK, attempts), 5.0 + waited) is gives_up
