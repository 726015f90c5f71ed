"""An answer as a file for a browser, sent at its pace from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import IO, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from drumline.infra.clickhouse.queries import Query as NamedQuery
from drumline.views.serve import question_form
from drumline.views.serve.database import Database

#: Time in which a browser must have a file; s.
DOWNLOAD_S = 600.0
_PART = 1 << 16


class Download(Response):
    """Sends a file that `opened` holds, and closes it whatever the browser does."""

    def __init__(self, opened: AbstractContextManager[IO[bytes]], name: str, media_type: str) -> None:
        """Take the first byte, so that an error of the query comes before the headers are sent; it may block."""
        super().__init__(media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})
        self._opened = opened
        self._file = opened.__enter__()
        self.headers["Content-Length"] = str(self._file.seek(0, 2))
        self._file.seek(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the file; what is not read in DOWNLOAD_S is not sent."""
        try:
            async with asyncio.timeout(DOWNLOAD_S):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                while part := await run_in_threadpool(self._file.read, _PART):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return  # the server closes a connection whose answer is not complete
        finally:
            self._opened.__exit__(None, None, None)


def download(database: Database, named: NamedQuery, sent: Mapping[str, str], ending: str) -> Response:
    """Return the answer of a question as a file. Raises BadRequest, FileRejected, and errors of the query; blocks."""
    form, media = question_form.FILES[ending]
    values = question_form.values(database, named, sent)
    return Download(database.file(named.sql, values, form), f"{named.name}.{ending}", media)
