"""Decode one Kafka record with the standard library. `schema` is the parsed JSON of the `.avsc` that the id names."""

import struct


def decode(value, schema):
    at = 5  # after the frame

    def long():
        nonlocal at
        number = shift = 0
        while True:
            byte, at = value[at], at + 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (number >> 1) ^ -(number & 1)

    def read(kind):
        nonlocal at
        name = kind["type"] if isinstance(kind, dict) else kind
        if name in ("int", "long"):
            return long()
        if name in ("array", "map"):
            items = []
            while count := long():
                if count < 0:  # then the block's size in bytes follows
                    count, _ = -count, long()
                for _ in range(count):
                    items.append(read(kind["items"]) if name == "array" else (read("string"), read(kind["values"])))
            return items if name == "array" else dict(items)
        size = long()
        at += size
        return value[at - size : at].decode() if name == "string" else value[at - size : at]

    record = {field["name"]: read(field["type"]) for field in schema["fields"]}
    for field in schema["fields"]:
        kind = field["type"]
        if not isinstance(kind, dict) or kind.get("logicalType") != "drumline-column":
            continue
        sign, width = kind["dtype"][1], int(kind["dtype"][2])
        struct_code = {"f4": "f", "f8": "d"}.get(sign + str(width)) or "bhiq"[width.bit_length() - 1]
        struct_code = struct_code.upper() if sign == "u" else struct_code
        values = list(struct.unpack(f"<{record['rows']}{struct_code}", record[field["name"]]))
        if kind["encoding"] == "delta":
            total, half = record["base_time_ns"] if kind.get("base") else 0, 1 << (8 * width - 1)
            low = half if sign == "i" else 0
            for row, step in enumerate(values):
                total = (total + step + low) % (2 * half) - low
                values[row] = total
        if "dictionary" in kind:
            values = [record[kind["dictionary"]][index] for index in values]
        record[field["name"]] = values
    return record
