"""A file of an answer is bounded, and its browser holds no connection to ClickHouse, however slowly it reads."""

import asyncio
import io
from contextlib import contextmanager

import pytest

from drumline.infra.clickhouse.client import PermanentError
from drumline.infra.config.settings import LocalSettings, Settings
from drumline.views.serve import database, download
from drumline.views.serve.database import CONNECTIONS, FILE_CONNECTIONS, Database, FileRejected
from drumline.views.serve.download import Download


class Client:
    """A connection whose answers are one text; counts those that are in use."""

    def __init__(self, text):
        self._text = text

    @contextmanager
    def raw_stream(self, sql, **_):
        if isinstance(self._text, Exception):
            raise self._text
        yield io.BytesIO(self._text)

    def close(self):
        pass


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """A function that returns a database with this answer to every query."""

    def with_answer(text):
        monkeypatch.setattr(database, "connect", lambda *_, **__: Client(text))
        return Database(Settings(local=LocalSettings(state=tmp_path)))

    return with_answer


def free(pages):
    return pages._free._value, pages._free_of_files._value, pages._files._value


def test_all_connections_are_free_while_files_are_read(answering):
    pages = answering(b'"a"\n"=1"\n')
    before = free(pages)
    assert before == (CONNECTIONS, FILE_CONNECTIONS, database.MOST_FILES)
    opened = [pages.file("SELECT 1", {}, "CSVWithNames") for _ in range(database.MOST_FILES)]
    assert {file.__enter__().read() for file in opened} == {b'"a"\n"\'=1"\n'}
    assert free(pages) == (CONNECTIONS, FILE_CONNECTIONS, 0)
    with pytest.raises(FileRejected, match="try again later"), pages.file("SELECT 1", {}, "CSVWithNames"):
        pass
    for file in opened:
        file.__exit__(None, None, None)
    assert free(pages) == before


@pytest.mark.parametrize(
    ("text", "error"), [(b"x" * 3_000, FileRejected), (PermanentError("no table", 60), PermanentError)]
)
def test_an_answer_that_is_too_large_or_fails_leaves_nothing(answering, monkeypatch, text, error):
    monkeypatch.setattr(database, "MOST_FILE_BYTES", 2_000)
    pages = answering(text)
    before = free(pages)
    with pytest.raises(error), pages.file("SELECT 1", {}, "CSVWithNames"):
        pass
    assert free(pages) == before


@pytest.mark.parametrize("does", ["reads", "halts", "goes"])
def test_a_file_is_closed_whatever_the_browser_does(answering, monkeypatch, does):
    monkeypatch.setattr(download, "DOWNLOAD_S", 0.3)
    pages = answering(b"x" * 200_000)
    before, sent = free(pages), []
    answer = Download(pages.file("SELECT 1", {}, "CSVWithNames"), "a.csv", "text/csv")

    async def send(message):
        sent.append(message)
        if len(sent) > 2 and does == "goes":
            raise ConnectionResetError
        await asyncio.sleep(60 if len(sent) > 2 and does == "halts" else 0)

    try:
        asyncio.run(answer({}, None, send))
    except ConnectionResetError:
        assert does == "goes"
    assert free(pages) == before
    assert dict(sent[0]["headers"])[b"content-length"] == b"200000"
    assert (sum(len(part.get("body", b"")) for part in sent) == 200_000) == (does == "reads")
