"""The layout of a ring is the same in C and in Python."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drumline.producers.nccl_profiler import library
from drumline.producers.rings import ring_file
from drumline.producers.rings.ring_file import COMM, RECORD, HeaderField, Kind

C = Path(library.__file__).parent
#: Names that differ.
KINDS = {"COLLECTIVE_OR_P2P": "OPERATION"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_places_and_numbers_are_those_of_the_plugin(tmp_path):
    header = (C / "ring.h").read_text()
    enums = dict(re.findall(r"enum (\w+) \{(.*?)\};", header, re.DOTALL))
    fields = re.findall(r"^  ([A-Z_]+) = \d+", enums["header"], re.MULTILINE)
    kinds = re.findall(r"^  (\w+) = \d+", enums["record_kind"], re.MULTILINE)
    lines = [f'printf("header {name} %d\\n", {name});' for name in fields]
    lines += [f'printf("kind {name} %d\\n", {name});' for name in kinds]
    for struct, dtype in (("comm_entry", COMM), ("record", RECORD)):
        lines += [
            f'printf("{struct} {name} %zu %zu\\n", offsetof(struct {struct}, {name}), '
            f"sizeof(((struct {struct} *)0)->{name}));"
            for name in dtype.names
        ]
    constants = ["LAYOUT", "HEADER_BYTES", "COMM_BYTES", "RECORD_BYTES", "MAX_COMMS"]
    lines += [f'printf("constant {name} %d\\n", {name});' for name in constants]
    lines.append('printf("constant MAGIC %llu\\n", (unsigned long long)RING_MAGIC);')
    program = (
        '#include <stddef.h>\n#include <stdio.h>\n#include "ring.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    (tmp_path / "layout.c").write_text(program)
    subprocess.run(["cc", "-I", C, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    printed = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    places = {tuple(line.split()[:2]): tuple(map(int, line.split()[2:])) for line in printed.splitlines()}
    expected = {("header", name): (field.value,) for name, field in HeaderField.__members__.items()}
    expected["header", "ENVIRONMENT"] = (ring_file.ENVIRONMENT // 8,)
    assert {key: value for key, value in places.items() if key[0] == "header"} == expected
    assert {KINDS.get(key[1], key[1]): value[0] for key, value in places.items() if key[0] == "kind"} == {
        kind.name: kind.value for kind in Kind
    }
    for struct, dtype in (("comm_entry", COMM), ("record", RECORD)):
        for name in dtype.names:
            assert places[struct, name] == (dtype.fields[name][1], dtype[name].itemsize), name
    for name in (*constants, "MAGIC"):
        assert places["constant", name] == (getattr(ring_file, name),)


def test_functions_and_datatypes_are_in_the_order_of_the_plugin():
    source = (C / "operations.c").read_text()
    lists = {
        name: re.findall(r'"(\w+)"', body) for name, body in re.findall(r"(\w+)\[\] = \{(.*?)\}", source, re.DOTALL)
    }
    assert lists["FUNCTIONS"] == list(ring_file.FUNCTIONS)
    sizes = {"8": 1, "e4m3": 1, "e5m2": 1, "32": 4, "64": 8, "16": 2}
    expected = [next(size for end, size in sizes.items() if name.lower().endswith(end)) for name in lists["DATATYPES"]]
    assert list(ring_file.DATATYPE_BYTES[1:]) == expected
