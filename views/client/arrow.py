"""Types that ClickHouse's Arrow format loses: labels of enumerations, and DateTime (without 64), as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from drumline.infra.clickhouse.client import PermanentError

if TYPE_CHECKING:
    import pyarrow as pa

_LABEL = re.compile(r"'((?:[^'\\]|\\.)*)' = (-?\d+)")


def with_types(table: pa.Table, types: Callable[[], Mapping[str, str]]) -> pa.Table:
    """Return the table with labels and timestamps in place of numbers.

    `types` (column -> ClickHouse type) is called only where there may be any; it raises PermanentError for a statement
    that is no SELECT.
    """
    import pyarrow as pa

    if not {pa.int8(), pa.int16(), pa.uint32()} & set(table.schema.types):
        return table
    try:
        kinds = types()
    except PermanentError:  # SHOW, DESCRIBE, ...
        return table
    for place, name in enumerate(table.column_names):
        kind = re.sub(r"^(?:LowCardinality|Nullable)\((.*)\)$", r"\1", kinds.get(name, ""))
        column = table.column(place)
        if kind.startswith("Enum"):
            labels = {int(number): re.sub(r"\\(.)", r"\1", text) for text, number in _LABEL.findall(kind)}
            values = [None if value is None else labels[value] for value in column.to_pylist()]
            table = table.set_column(place, name, pa.array(values, pa.string()))
        elif re.match(r"DateTime(\(|$)", kind):
            zone = re.search(r"'(.*)'", kind)
            stamps = column.cast(pa.int64()).cast(pa.timestamp("s", tz=zone[1] if zone else "UTC"))
            table = table.set_column(place, name, stamps)
    return table
