"""A spreadsheet opens CSV of users' names and calculates nothing of them."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from drumline.views.sqlshell.spreadsheet import without_formulas

BEGINS = "=+-@\t\r"
CELLS = st.text(alphabet="=+-@\t\r\n,\"'a5", max_size=6)


def written(rows):
    """Rows as ClickHouse writes them: text is quoted, numbers are not."""
    quoted = [[cell if isinstance(cell, int) else '"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    return "".join(",".join(map(str, row)) + "\n" for row in quoted).encode()


def is_formula(cell):
    return isinstance(cell, str) and cell[:1] in list(BEGINS) and cell[:2] != "\r\n"


def parts_of(text, sizes):
    place = 0
    for size in sizes:
        yield text[place : place + size]
        place += size
    yield text[place:]


@given(st.lists(st.lists(CELLS | st.integers(-9, 9), min_size=2, max_size=2), max_size=6), st.lists(st.integers(0, 5)))
def test_no_cell_begins_a_formula_wherever_the_answer_is_cut_and_all_others_stay(rows, sizes):
    answer = b"".join(without_formulas(parts_of(written(rows), sizes))).decode()
    expected = [["'" + cell if is_formula(cell) else str(cell) for cell in row] for row in rows]
    assert list(csv.reader(io.StringIO(answer, newline=""))) == expected
