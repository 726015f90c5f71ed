"""The webhook against a real HTTP server: signature, retries, refusals, and no secret in any message."""

import base64
import hashlib
import hmac
import json

import pytest

from drumline.infra.config.servers import OffenderSettings
from drumline.infra.config.webhook_key import webhook_key_bytes
from drumline.views.offenders import webhook as module
from drumline.views.offenders.webhook import ATTEMPTS, Webhook, WebhookFailed, signature

KEY = bytes(range(32))
TEXT = "whsec_" + base64.b64encode(KEY).decode()


def test_the_signature_is_that_of_the_standards_example():
    """Key, id, time and body of the specification's libraries (standard-webhooks/libraries, test of `sign`)."""
    key = webhook_key_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_gets_signed_json_and_can_verify_it(receiver):
    Webhook(receiver.url, KEY).send("id-1", b'{"host": "node-bad"}')
    headers, body = receiver.requests.get_nowait()
    signed = f"id-1.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], headers["content-type"]) == ("id-1", "application/json")
    assert json.loads(body) == {"host": "node-bad"}


def test_it_tries_again_until_the_receiver_takes_it(receiver):
    receiver.answers += [500, 429, 503, 202]
    delays = []
    Webhook(receiver.url, KEY, sleep=delays.append).send("id-1", b"{}")
    bodies = [receiver.requests.get_nowait() for _ in range(4)]
    assert {(headers["webhook-id"], body) for headers, body in bodies} == {("id-1", b"{}")}
    assert len(delays) == 3
    assert all(0 < delay <= 0.2 * 2**number for number, delay in enumerate(delays))


@pytest.mark.parametrize(
    ("status", "attempts", "may_pass"),
    [(400, 1, False), (401, 1, False), (307, 1, False), (503, ATTEMPTS, True)],
)
def test_a_refusal_is_final_and_an_outage_is_not(receiver, status, attempts, may_pass):
    receiver.answers += [status] * ATTEMPTS
    with pytest.raises(WebhookFailed, match=str(status)) as failed:
        Webhook(receiver.url, KEY, sleep=lambda _: None).send("id-1", b"{}")
    assert (receiver.requests.qsize(), failed.value.may_pass) == (attempts, may_pass)
    assert "5ECRET" not in str(failed.value), "a URL may have a secret in its path"


def test_a_receiver_that_is_not_there_or_silent_may_be_there_later(receiver, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    receiver.answers += [None]
    with pytest.raises(WebhookFailed, match="does not answer") as failed:
        Webhook(receiver.url, KEY, sleep=lambda _: None)._post("id-1", b"{}")
    assert failed.value.may_pass
    with pytest.raises(WebhookFailed, match="Connection refused") as failed:
        Webhook("http://127.0.0.1:9/T0P-5ECRET", KEY, sleep=lambda _: None).send("id-1", b"{}")
    assert "5ECRET" not in str(failed.value)


def test_the_key_comes_from_a_file_and_neither_it_nor_the_url_is_shown(tmp_path):
    (tmp_path / "key").write_text(TEXT + "\n")
    settings = OffenderSettings(webhook="https://hooks.example/T0P-5ECRET", webhook_key_file=tmp_path / "key")
    assert webhook_key_bytes(settings.webhook_key.get_secret_value()) == KEY
    assert "5ECRET" not in repr(settings) + settings.model_dump_json()
    assert TEXT not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize("text", ["", "secret", TEXT.removeprefix("whsec_"), "whsec_YWJj", "whsec_not base64"])
def test_a_key_that_is_none_is_refused_without_its_text(text):
    with pytest.raises(ValueError, match="DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE needs whsec_") as rejected:
        OffenderSettings(webhook="http://h", webhook_key=text)
    assert not text or text not in str(rejected.value)
