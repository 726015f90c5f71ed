"""Publish hostile records beside an innocent job, for `drumline chaos --hostile`."""
