"""One private local stack per test session: free ports, a temporary state directory, the shared jar cache.

`stack` gives Settings that point at it; `clean_stack` gives them with empty topics and a database of their own;
`kill9` and `wait_for_stack` break it and wait until it is back; `environment` is for subprocesses.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.clickhouse.engine import query
from drumline.infra.localstack.ephemeral import environment as environment_for
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.infra.localstack.kafka.jars import ensure_jars
from drumline.infra.localstack.kafka.java import find_java
from drumline.infra.localstack.processes import own_processes

# A shell that starts tests in the background has them ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected stays; to search it for garbage again and again is a sixth of the collection.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have slow tests: at the end no process is left alone with one (make test)."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("stack", "traces", "waits")))}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def jars() -> Path:
    """Kafka's jars and a Java to run them. Without, stack tests are skipped; in CI (CI=true) they fail."""
    try:
        find_java()
        return ensure_jars(Settings())
    except StackError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no local stack: {error}")


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Settings]:
    """Settings of a stack that is not started; whatever a test starts there is stopped."""
    settings = ephemeral_settings(tmp_path / "state")
    yield settings
    local_stack.down(settings)


@pytest.fixture(scope="session")
def stack(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A running broker and engine; Settings that point at them."""
    settings = ephemeral_settings(tmp_path_factory.mktemp("stack"), jars.parent)
    local_stack.up(settings)
    yield settings
    local_stack.down(settings)


@pytest.fixture
def clean_stack(stack: Settings, wait_for_stack: Callable[[], None]) -> Iterator[Settings]:
    """The running stack without topics and groups of topic_names, and with names of its own for what outlives those:
    database (not created; dropped afterwards), sink group, Faust app id."""
    wait_for_stack()
    mark = secrets.token_hex(4)
    settings = stack.model_copy(
        update={
            "clickhouse": stack.clickhouse.model_copy(update={"database": f"gpu_{mark}"}),
            "sink": stack.sink.model_copy(update={"group": f"sink-{mark}"}),
            "stream": stack.stream.model_copy(update={"app_id": f"streams-{mark}"}),
        }
    )
    delete_topics(stack)
    yield settings
    wait_for_stack()
    query(stack, f"DROP DATABASE IF EXISTS {settings.clickhouse.database} SYNC", "writer")
    delete_topics(stack)


def delete_topics(settings: Settings) -> None:
    """All topics that are not Kafka's own; returns when the broker does not list them any more."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})

    def topic_names() -> list[str]:
        return [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]

    if names := topic_names():
        for done in admin.delete_topics(names).values():
            done.result(WAIT_S)
        assert local_stack.wait_until(lambda: not topic_names(), WAIT_S)


@pytest.fixture
def environment(stack: Settings) -> dict[str, str]:
    """Environment of a subprocess that talks to the running stack."""
    return environment_for(stack)


@pytest.fixture
def environment_of() -> Callable[[Settings], dict[str, str]]:
    """Environment of a subprocess for other settings (of `clean_stack` or `private`)."""
    return environment_for


@pytest.fixture
def new_topic(stack: Settings) -> Callable[..., str]:
    """Make a topic with a name of its own: new_topic(partitions=1, **config) -> name."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"test-{secrets.token_hex(4)}"
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": stack.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(WAIT_S)
        return name

    return create


@pytest.fixture
def kill9(stack: Settings) -> Callable[[str], int]:
    """SIGKILL the `broker`, `engine` or `supervisor` of the running stack; returns the pid that died."""

    def kill(name: str) -> int:
        [process] = own_processes(stack)[name]
        os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs([process], timeout=10)
        return process.pid

    return kill


@pytest.fixture
def wait_for_stack(stack: Settings) -> Callable[[], None]:
    """Until broker and engine answer (again)."""
    return lambda: local_stack.wait_for_stack(stack)
