"""Compare schema versions: Avro's rules, and drumline's for packed columns, which Avro treats as bytes."""

from __future__ import annotations

from drumline.schemas.model import RecordModel


def unreadable(writer: RecordModel, reader: RecordModel) -> list[str]:
    """Return the reasons why `reader` cannot read what `writer` wrote; empty if it can. Either may be the newer one."""
    faults = []
    if writer.name != reader.name:
        faults.append(f"record {writer.name} became {reader.name}")
    old = {column.name: column for column in writer.columns}
    for column in reader.columns:
        before = old.get(column.name)
        if before is not None:
            for attribute in ("dtype", "delta", "base", "dictionary"):
                if getattr(before, attribute) != getattr(column, attribute):
                    faults.append(f"column {column.name}: {attribute} changed")
        elif column.name in writer.envelope:
            faults.append(f"field {column.name}: became a column")
        elif column.name not in reader.defaults:
            faults.append(f"column {column.name}: new, needs a default")
        elif not writer.columns:
            faults.append(f"column {column.name}: the record had no columns, so its rows have no length")
        elif column.dictionary and (
            column.dictionary in writer.envelope or reader.defaults.get(column.dictionary) != [""]
        ):
            faults.append(f'column {column.name}: new, needs a new dictionary with default [""]')
    for name, kind in reader.envelope.items():
        if name in old:
            faults.append(f"column {name}: became a field")
        elif name not in writer.envelope:
            if name not in reader.defaults:
                faults.append(f"field {name}: new, needs a default")
        elif writer.envelope[name] != kind:
            faults.append(f"field {name}: {writer.envelope[name]} became {kind}")
    return faults


def breaking(old: RecordModel, new: RecordModel) -> list[str]:
    """Return the reasons why `new` must not follow `old`: changes that cannot be read, and removed fields.

    Old readers would see a missing column as its fill value. So an unused field stays and is no longer filled.
    """
    removed = [f"field {name}: removed" for name in old.fields if name not in new.fields]
    return unreadable(old, new) + removed
