"""The verdict on a recorded job as one HTML page, in the report's style. It loads nothing and runs no script."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata

from drumline.views.report.page import environment, style
from drumline.views.verdict import answer_text as text
from drumline.views.verdict.evaluation import OfflineVerdict

#: Parts of a step -> the colour of the report's style sheet.
PARTS = {"compute": "--series-1", "copies": "--series-5", "exposed communication": "--series-4", "idle": "--line"}


def verdict_page(verdict: OfflineVerdict, price_per_gpu_hour: float = 0.0, created: datetime | None = None) -> str:
    """Return the HTML of the page; all text from the traces is escaped."""
    longest = max((budget.step_ms for budget in verdict.budgets), default=0.0) or 1.0
    stacked = [
        [
            (name, PARTS[name], 100 * value / longest)
            for name, value in zip(PARTS, (b.compute_ms, b.copy_ms, b.exposed_ms, b.idle_ms), strict=True)
        ]
        for b in text.shown_budgets(verdict)
    ]
    template = environment("drumline.views.verdict").get_template("verdict.html")
    return template.render(
        verdict=verdict,
        answer=text.answer_sentence(verdict),
        evidence=text.evidence_lines(verdict, price_per_gpu_hour),
        headers=text.headers(verdict),
        rows=list(zip(text.budget_rows(verdict), stacked, strict=True)),
        parts=PARTS,
        budget_note=text.budget_note(verdict),
        coverage=text.coverage_lines(verdict),
        surer=text.surer_lines(verdict),
        style=style(),
        version=metadata.version("drumline"),
        created=f"{created or datetime.now(UTC):%Y-%m-%d %H:%M}",
    )
