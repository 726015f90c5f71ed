"""The median of a rank's peers, which the rank is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Values that are compared at once, if a column is no longer: caches hold all that is computed of them.
PASS_VALUES = 1 << 17


def peers_median(values: Floats) -> Floats:
    """Return [m, S]: per column the median of the *other* rows of `values` [m, S], NaN where there is no other.

    NaN values are skipped. A row does not count for itself, so half of the ranks that are late together (one of two
    hosts) still stand out.
    """
    m, s = values.shape
    most = max(1, PASS_VALUES // max(1, m))
    if s <= most:
        return _medians(values)
    out = np.empty((m, s))
    for at in range(0, s, most):
        out[:, at : at + most] = _medians(values[:, at : at + most])
    return out


def _medians(values: Floats) -> Floats:
    m, s = values.shape
    valid = np.isfinite(values)
    n = valid.sum(0) - 1  # others of a valid entry
    ordered = np.sort(np.where(valid, values, np.inf), axis=0)
    column = np.arange(s)  # indices: *_along_axis cost several times as much for the few rows of a step
    out = np.zeros((m, s))
    for middle in ((n - 1) // 2, n // 2):
        low, high = (ordered[np.minimum(np.maximum(at, 0), m - 1), column] for at in (middle, middle + 1))
        out += 0.5 * np.where(values <= low, high, low)  # without a row up to the middle, the next one is there
    out[~valid | (n < 1)[None, :]] = np.nan
    return out
