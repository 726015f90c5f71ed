"""Records as the agent's producer gives them to the Kafka client."""

from drumline.infra.config.settings import Settings
from drumline.producers.agent.producer import KafkaSender
from drumline.schemas.tenants import signed_headers


def test_records_carry_the_signature_of_the_tenant_if_there_is_one():
    sent = []

    class Client:
        def produce(self, topic, **record):
            sent.append(record)

    settings, key = Settings(), "ab" * 32
    for kafka in (settings.kafka, type(settings.kafka)(tenant="a", tenant_key=key)):
        sender = KafkaSender(settings.model_copy(update={"kafka": kafka}), ["t"], lambda *_: Client())
        assert sender.send("t", "p", b"value", lambda _: None)
    plain, signed = sent
    assert "headers" not in plain
    assert signed["headers"] == signed_headers("a", bytes.fromhex(key), "t", b"p", b"value")
