"""Steps of a deep window that lie ahead of all ranks, for `drumline capture` and for verdicts. Pure."""

from __future__ import annotations

import math

#: Time between the question and its first step: the agents take the record (under 1 s), job and decoder read their file
#: four times a second, and CUPTI is attached (0.4 s on an H200). A rank records as soon as it can.
LEAD_S = 5.0
#: Time that a window may take beyond its steps, as they are not all as long; s.
SLACK_S = 15.0


def steps_ahead(newest: int, age_s: float, step_s: float, steps: int, lead_s: float = LEAD_S) -> tuple[int, float]:
    """Return the first of so many steps, and the time in which they have ended; s, twice what they should take.

    `newest`: the last step that is known. `age_s`: since it ended. `lead_s`: until the first one.
    """
    first = newest + 1 + math.ceil((age_s + lead_s) / step_s)
    return first, (first + steps - newest) * step_s * 2 + SLACK_S
