"""Comments of columns name the values that the programs write: their own lists, so that none is missing or stale."""

import re
from collections.abc import Iterable

import pytest
import tables_page

from drumline.infra.clickhouse.kernel_names import FAMILIES, OTHER
from drumline.infra.guidance.causes import CAUSES
from drumline.producers.derive.nccl.names import OPERATIONS
from drumline.producers.derive.steps.steps import API, INFERRED, MARKER, OPTIMIZER
from drumline.producers.identity import CUPTI, NCCL
from drumline.producers.rings.progress import STATES as PROCESS_STATES
from drumline.producers.rings.ring_file import DATATYPES, FUNCTIONS
from drumline.schemas.meanings import CLOCK_REASONS
from drumline.sinks.tables.tables import SEVERITIES
from drumline.streams.hangs.explanation import Reason
from drumline.streams.lateness.collective_join import EXCHANGE, PIPELINE
from drumline.streams.lateness.collective_join import OPERATIONS as COMPARED
from drumline.streams.stragglers.alarm import STATES

#: As CUPTI numbers them.
COPIES = "1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP"
MEMORY = "1 pageable, 2 pinned, 3 device, 4 array, 5 managed"
LISTS: dict[str, Iterable[str]] = {
    "stragglers.severity": SEVERITIES,
    "stragglers.state": STATES,
    "stragglers.cause": {"ok", *(entry.cause for entry in CAUSES)},
    "stragglers.detail": {entry.detail for entry in CAUSES},
    "stragglers.confidence": ("none", "low", "medium", "high"),
    "hangs.reason": [reason.value for reason in Reason],
    "hangs.operation": FUNCTIONS,
    "hangs.datatype": DATATYPES,
    "hangs_now.operation": FUNCTIONS,
    "hangs_now.datatype": DATATYPES,
    "progress.state": PROCESS_STATES,
    "lateness.worst_operation": COMPARED,
    "lateness.point_to_point": (EXCHANGE, PIPELINE),
    "collectives.operation": OPERATIONS,
    "collectives.source": (CUPTI, NCCL),
    "steps.source": (CUPTI, NCCL),
    "steps.steps_from": (API, MARKER, OPTIMIZER, INFERRED),
    "processes.source": ("replay", "agent", CUPTI, NCCL),
    "memcpys.kind": COPIES.split(", "),
    "memcpys.src_kind": MEMORY.split(", "),
    "memcpy_bandwidth.kind": COPIES.split(", "),
    "memcpy_bandwidth.src_kind": MEMORY.split(", "),
    "device_samples.throttle_reasons": [", ".join(CLOCK_REASONS.values())],  # in the order of the bits
    "kernel_names.family": {OTHER, *(family for family, _ in FAMILIES)},
}


def comments() -> dict[str, str]:
    """`table.column` -> type and comment, of the page that a stack test holds to the schema."""
    result, table = {}, ""
    for line in tables_page.PAGE.read_text().splitlines():
        if line.startswith("### "):
            table = line[4:]
        elif cells := re.match(r"\| `(\w+)` \| (.*) \|$", line):
            result[f"{table}.{cells[1]}"] = cells[2]
    return result


@pytest.mark.parametrize("column", LISTS)
def test_a_comment_names_every_value(column):
    comment = comments()[column]
    assert not [value for value in LISTS[column] if not re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", comment)], (
        f"{column} writes more than its comment says: add a migration that changes the comment"
    )


@pytest.mark.parametrize("column", ["stragglers.cause", "stragglers.detail", "hangs.datatype", "collectives.operation"])
def test_a_comment_names_no_value_that_is_not_written(column):
    listed = re.sub(r"empty = \w+", "", comments()[column].split("|", 1)[1].split(":", 1)[1])
    listed_values = {text for part in re.split(r"[;,]\s*|\w+: ", listed) if (text := part.strip())}
    assert listed_values <= set(LISTS[column])


def test_details_stand_beside_their_cause():
    of_cause = dict(re.findall(r"(\w+): ([\w, ]+)", comments()["stragglers.detail"]))
    written = {entry.cause: set[str]() for entry in CAUSES if entry.detail}
    for entry in CAUSES:
        if entry.detail:
            written[entry.cause].add(entry.detail)
    assert {cause: set(re.split(r",\s*", text)) for cause, text in of_cause.items()} == written


def test_the_bits_of_throttle_reasons_are_in_order_without_a_gap():
    assert list(CLOCK_REASONS) == [1 << place for place in range(len(CLOCK_REASONS))]
