"""Rows of a job's verdicts."""

from __future__ import annotations

from support.labs.attribution import CONFIG

from drumline.streams.offline import latest, verdicts


def rows_of(stream, column, dictionary=None, config=CONFIG):
    """Return first step -> rank -> a column of the last revision."""
    out = {}
    for (*_, first), batch in sorted(latest(verdicts(stream, config)).items()):
        values = batch.strings(column, dictionary) if dictionary else batch.columns[column].tolist()
        out[first] = dict(zip(batch.columns["rank"].tolist(), list(values), strict=True))
    return out
