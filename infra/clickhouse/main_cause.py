"""The cause of a rank in many windows of steps: one rule for pages, reports and dashboards, as SQL."""

from __future__ import annotations


def main_cause(where: str) -> str:
    """Return SQL of (cause, detail) of a group of `stragglers AS s`: the cause that cost most, then its detail.

    Time lost adds up over the windows for which `where` holds; of equal causes the first by name counts. Without one
    both are empty.
    """
    windows = f"groupArrayIf((toString(s.cause), toString(s.detail), s.lost_ns), {where})"
    cause = _costliest(windows, "1", "1")
    return f"({cause}, {_costliest(windows, '2', f'w.1 = {cause}')})"


def _costliest(windows: str, field: str, where: str) -> str:
    lost = f"arraySum(arrayMap(w -> if(w.{field} = name AND {where}, w.3, 0), {windows}))"
    names = f"arrayDistinct(arrayMap(w -> w.{field}, arrayFilter(w -> {where}, {windows})))"
    return f"arraySort(name -> (-{lost}, name), {names})[1]"
