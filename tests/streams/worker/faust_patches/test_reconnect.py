import asyncio

import aiokafka
import pytest

from drumline.streams.worker.faust_patches.reconnect import RETRY_MS, slow_down_reconnects


@pytest.fixture
def defaults():
    """aiokafka as it was before."""
    kept = {kind: dict(kind.__init__.__kwdefaults__) for kind in (aiokafka.AIOKafkaConsumer, aiokafka.AIOKafkaProducer)}
    yield
    for kind, values in kept.items():
        kind.__init__.__kwdefaults__.update(values)


def test_clients_made_afterwards_wait_longer_between_tries(defaults):
    slow_down_reconnects()

    async def wait_ms():
        clients = [aiokafka.AIOKafkaConsumer(), aiokafka.AIOKafkaProducer()]
        return [client._client if hasattr(client, "_client") else client.client for client in clients]

    for client in asyncio.run(wait_ms()):
        assert RETRY_MS[0] / 1000 <= client._retry_backoff <= RETRY_MS[1] / 1000


def test_an_aiokafka_without_the_argument_is_noticed(defaults, monkeypatch):
    class Other:
        def __init__(self, *, retries=3):
            pass

    monkeypatch.setattr(aiokafka, "AIOKafkaProducer", Other)
    with pytest.raises(KeyError, match="Other"):
        slow_down_reconnects()
