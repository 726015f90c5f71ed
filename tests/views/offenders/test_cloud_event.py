"""A notice as a CloudEvent: its required attributes, the notice as data, and the same bytes each time."""

import base64
import hashlib
import hmac
import json

from drumline.views.offenders.cloud_event import cloud_event
from drumline.views.offenders.webhook import Webhook

NOTICE = {"type": "host.at_fault", "id": "id-1", "host": "node-bad", "text": "t", "last_time": "2026-11-01T10:00:00Z"}
KEY = bytes(range(32))


def test_an_event_has_the_attributes_of_version_1_and_the_notice_as_data():
    event = json.loads(cloud_event("id-1", json.dumps(NOTICE).encode()))
    assert event == {
        "specversion": "1.0", "id": "id-1", "source": "/drumline/notify", "type": "drumline.host.at_fault",
        "subject": "node-bad", "time": "2026-11-01T10:00:00Z", "datacontenttype": "application/json", "data": NOTICE,
    }  # fmt: skip


def test_a_receiver_gets_the_event_with_its_content_type_and_a_signature_of_it(receiver):
    for _ in range(2):
        Webhook(receiver.url, KEY, format="cloudevents").send("id-1", json.dumps(NOTICE).encode())
    (headers, body), (_, again) = (receiver.requests.get_nowait() for _ in range(2))
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert json.loads(body)["data"] == NOTICE
    assert body == again
    signed = f"id-1.{headers['webhook-timestamp']}.".encode() + body
    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
