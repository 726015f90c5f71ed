"""No worker commits after it has lost its membership. This fails too when aiokafka's insides have changed."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from drumline.infra.config.settings import Settings
from drumline.schemas.codec import Codec
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker

TP = TopicPartition("gpu.kernel.v1", 3)


@pytest.fixture(autouse=True)
def patched(monkeypatch, tmp_path):
    """aiokafka as a worker changes it."""
    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", GroupCoordinator._do_commit_offsets)
    StreamWorker(Settings(stream={"data_dir": tmp_path}), [], WorkerTopics(4, {}), Codec()).close()


def commit(meanwhile, requests):
    """Commit as member 7 of generation 41 to a broker that accepts everything, and keep the requests."""
    coordinator = object.__new__(GroupCoordinator)
    coordinator.group_id, coordinator.generation, coordinator.member_id = "workers", 41, "7"
    coordinator.coordinator_id = 1
    coordinator.request_rejoin = lambda: None

    async def known():
        meanwhile(coordinator)

    async def accepted(request):
        requests.append(request)
        return SimpleNamespace(topics=[(TP.topic, [(TP.partition, 0)])])

    async def run():
        coordinator._commit_lock = asyncio.Lock()
        coordinator.ensure_coordinator_known, coordinator._send_req = known, accepted
        await coordinator.commit_offsets(None, {TP: OffsetAndMetadata(1373, "")})

    asyncio.run(run())


def test_a_member_commits():
    requests = []
    commit(lambda coordinator: None, requests)
    assert len(requests) == 1


def test_a_commit_is_not_sent_after_the_session_of_its_worker_expired():
    """Kafka accepts a commit without a generation while the group has no members."""
    requests = []
    with pytest.raises(CommitFailedError, match="already rebalanced"):  # Faust continues then
        commit(GroupCoordinator.reset_generation, requests)
    assert requests == []
