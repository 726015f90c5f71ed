"""Kafka's jars and Java, with a Maven and a Java made of shell."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import LocalSettings, Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack.kafka import jars
from drumline.infra.localstack.kafka.broker import properties
from drumline.infra.localstack.kafka.jars import ensure_jars, jar_folder
from drumline.infra.localstack.kafka.java import find_java, java_version

MAVEN = """#!/bin/sh
echo called >> "$LAB/calls"
for argument in "$@"; do case "$argument" in -DoutputDirectory=*) out="${argument#*=}";; esac; done
mkdir -p "$out"
echo "[INFO] Downloaded from central: https://host/org/kafka_2.13-4.jar (6.2 MB at 9 MB/s)"
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH; programs get $LAB."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LAB", str(tmp_path))
    sums = tmp_path / "jars.sha256"
    sums.write_text(f"{hashlib.sha256(b'').hexdigest()}  kafka_2.13-4.jar\n")
    monkeypatch.setattr(jars, "SUMS", sums)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def cached(lab: Path) -> Settings:
    return Settings(local=LocalSettings(cache=lab / "cache", state=lab / "state"))


def test_jars_are_fetched_once_and_then_without_maven(lab: Path) -> None:
    program(lab / "mvn", MAVEN + 'sleep 0.1; touch "$out/kafka_2.13-4.jar"\n')
    folder = ensure_jars(cached(lab))
    (lab / "mvn").unlink()
    assert ensure_jars(cached(lab)) == folder == jar_folder(cached(lab))
    assert (folder / "kafka_2.13-4.jar").exists()
    assert (lab / "calls").read_text() == "called\n"


def test_a_fetch_that_broke_off_is_repeated_from_nothing(lab: Path) -> None:
    program(lab / "mvn", MAVEN + 'touch "$out/half.jar"; echo "[ERROR] Connection reset"; exit 1\n')
    with pytest.raises(StackError, match="Connection reset"):
        ensure_jars(cached(lab))
    assert not jar_folder(cached(lab)).exists()
    program(lab / "mvn", MAVEN + 'touch "$out/kafka_2.13-4.jar"\n')
    assert {path.name for path in ensure_jars(cached(lab)).iterdir()} == {"kafka_2.13-4.jar"}


def test_maven_that_succeeds_without_kafka_is_an_error(lab: Path) -> None:
    program(lab / "mvn", MAVEN)
    with pytest.raises(StackError, match=r"maven\.log"):
        ensure_jars(cached(lab))


def test_a_jar_that_was_changed_added_or_removed_since_is_found_at_the_next_start(lab: Path) -> None:
    program(lab / "mvn", MAVEN + 'touch "$out/kafka_2.13-4.jar"\n')
    folder = ensure_jars(cached(lab))
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
            ensure_jars(cached(lab))
        path.unlink(missing_ok=True)
        (folder / "kafka_2.13-4.jar").touch()
    assert ensure_jars(cached(lab)) == folder


def test_what_maven_brings_is_compared_before_it_is_used(lab: Path) -> None:
    program(lab / "mvn", MAVEN + 'echo other > "$out/kafka_2.13-4.jar"\n')
    with pytest.raises(StackError, match="not expected, kafka_2"):
        ensure_jars(cached(lab))
    assert not jar_folder(cached(lab)).exists()


def test_the_expected_sums_are_those_of_the_poms_jars() -> None:
    pom, names = jars.POM.read_text(), [line.split()[1] for line in jars.SUMS.read_text().splitlines()]
    for name, version in re.findall(r"<artifactId>(k[\w.]+|log4j[\w-]+)</artifactId>\s*<version>([\d.]+)<", pom):
        assert f"{name}-{version}.jar" in names
    assert names == sorted(set(names))


def test_two_at_a_time_fetch_once(lab: Path) -> None:
    program(lab / "mvn", MAVEN + 'sleep 1; touch "$out/kafka_2.13-4.jar"\n')
    code = (
        "import sys; from pathlib import Path; from drumline.infra.localstack.kafka import jars\n"
        "from drumline.infra.config.settings import LocalSettings, Settings\n"
        "jars.SUMS = Path(sys.argv[2]); jars.ensure_jars(Settings(local=LocalSettings(cache=Path(sys.argv[1]))))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(lab / "cache"), str(jars.SUMS)]) for _ in range(2)]
    assert [process.wait(WAIT_S) for process in both] == [0, 0]
    assert (lab / "calls").read_text() == "called\n"


def test_missing_maven_names_what_to_install(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(lab))
    with pytest.raises(StackError, match=r"apt-get install .*maven") as message:
        ensure_jars(cached(lab))
    assert str(jar_folder(cached(lab))) in str(message.value)  # where to put them without a network


def test_missing_and_old_java_name_what_to_install(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(lab))
    with pytest.raises(StackError, match="apt-get install default-jre"):
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
