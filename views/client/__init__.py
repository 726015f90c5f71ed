"""Read drumline's results from Python, as Arrow tables.

    from drumline import connect

    with connect() as db:                                # settings of the environment, else the local stack
        db.jobs().to_pandas()
        db.verdicts("demo").to_pandas()                  # the newest run, what was a warning or worse
        db.ask("top-kernels", job="demo", limit=5)       # a question of `drumline sql --list`
        db.sql("SELECT count() AS n FROM kernels WHERE job = {job:String}", {"job": "demo"})

Errors: TransientError may pass, retry later; PermanentError will not. UnknownQuery and BadRequest are raised before
anything is sent, NoSuchRun names the jobs or runs that are stored. The extra is `sql`.
"""

from __future__ import annotations

from drumline.infra.clickhouse.client import PermanentError, TransientError
from drumline.infra.clickhouse.queries import Query, UnknownQuery
from drumline.views.client.connection import Connection, connect
from drumline.views.report.data import NoSuchRun
from drumline.views.sqlshell.request import BadRequest

__all__ = [
    "BadRequest",
    "Connection",
    "NoSuchRun",
    "PermanentError",
    "Query",
    "TransientError",
    "UnknownQuery",
    "connect",
]
