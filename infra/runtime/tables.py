"""Tables of all commands: wrapped or turned into lines where they are too wide for the terminal, and never cut."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table


#: Characters from which on a name without spaces may be continued on the next line.
LONG = 40
#: Characters of the narrowest column of prose.
PROSE = 20
#: Parts of a table at most, and spaces between their columns.
MOST_PARTS, GAP = 3, 2


def arranged(table: Table, console: Console) -> RenderableType:
    """Return what to print of a table whose cells are text: nothing of it is cut.

    A file or a pipe gets it in its natural width. On a terminal, columns of prose are wrapped at spaces, long names
    within, numbers never. Where that is not enough, a table without borders, whose first column is a name, is printed
    in parts that repeat it; of any other, each row becomes lines of name and value.
    """
    from rich.measure import Measurement

    texts = [_texts(column, console) for column in table.columns]
    natural = [_widest(cells) for cells in texts]
    total = Measurement.get(console, console.options.update(max_width=sys.maxsize), table).maximum
    borders = max(0, total - sum(natural))
    least = [
        width
        if column.justify == "right"
        else min(LONG, max(_widest([part for cell in cells for part in cell.split()]), min(width, PROSE)))
        for column, cells, width in zip(table.columns, texts, natural, strict=True)
    ]
    free = console.width - borders if console.is_terminal else sum(natural)
    if sum(least) > free:  # below zero, where the borders alone are wider than the terminal
        return _parts(table, texts, natural, console.width) or _lines(table, texts, console)
    widths = [min(width, free) for width in natural]
    while sum(widths) > free:
        wide = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[wide] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width, column.no_wrap, column.overflow = width, False, "fold"
    if not console.is_terminal:
        table.width = sum(natural) + borders
    return table


def _texts(column: Column, console: Console) -> list[str]:
    """Return the text of a column's header and cells, without markup."""
    cells = [column.header, *column.cells]
    return [console.render_str(cell).plain if isinstance(cell, str) else str(cell) for cell in cells]


def _widest(texts: list[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _parts(table: Table, texts: list[list[str]], natural: list[int], width: int) -> RenderableType | None:
    """Return tables that fit, with the first column in front of each; None where there is none such."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    groups: list[list[int]] = [[]]
    for index, size in enumerate(natural[1:], 1):
        if natural[0] + sum(natural[i] + GAP for i in groups[-1]) + size + GAP > width:
            groups.append([])
        groups[-1].append(index)
    fits = natural[0] + max(natural[1:], default=0) + GAP <= width
    if table.box is not None or len(groups) > MOST_PARTS or not (fits and all(groups)):
        return None
    parts: list[RenderableType] = []
    for group in groups:
        part = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), title=None if parts else table.title)
        part.title_justify, part.title_style = table.title_justify, table.title_style
        for index in (0, *group):
            column = table.columns[index]
            part.add_column(Text(texts[index][0]), justify=column.justify, no_wrap=True, overflow="fold")
        for row in zip(*(texts[index][1:] for index in (0, *group)), strict=True):
            part.add_row(*map(Text, row))
        parts += [part, Text()]
    return Group(*parts[:-1])


def _lines(table: Table, texts: list[list[str]], console: Console) -> RenderableType:
    from rich.text import Text

    names = [" ".join(cells[0].split()) for cells in texts]
    margin = _widest(names) + 2
    out = [str(table.title).strip()] if table.title else []
    for number, row in enumerate(zip(*(cells[1:] for cells in texts), strict=True), 1):
        out.append(f"row {number}")
        out += [f"  {name.ljust(margin)}{cell}" for name, cell in zip(names, row, strict=True) if name or cell]
    return Text("\n".join(out if len(table.rows) else [*out, *names]))
