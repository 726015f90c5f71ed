"""The example that marks nodes: drumline's webhook on one side, an HTTP server like Kubernetes' API on the other."""

import json
import re
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from drumline.infra.kubernetes import node_taint
from drumline.infra.kubernetes.node_taint import Cluster, Receiver
from drumline.views.offenders.webhook import Webhook, WebhookFailed

KEY = bytes(range(32))
TEMPLATE = (Path(__file__).parents[3] / "infra/helm/drumline/templates/node-taint.yaml").read_text()
NOTICE = {"host": "node-bad", "text": "host node-bad was at fault 3 times in 4 jobs of the last 30 days"}
OTHER = {"key": "gpu", "value": "true", "effect": "NoSchedule"}


class Api(ThreadingHTTPServer):
    """One node; each change raises its version, and a patch with another version is a conflict."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ApiHandler)
        self.node = {"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"taints": [OTHER]}, "status": {}}
        self.calls, self.meanwhile, self.refusals = [], None, []

    def patch(self, path, body, kind):
        if self.refusals:
            return self.refusals.pop(0)
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, self.node["metadata"]["resourceVersion"]):
            return 409
        if path.endswith("/status"):
            assert kind == "application/strategic-merge-patch+json"
            by_type = {c["type"]: c for c in self.node["status"].get("conditions", [])}
            by_type |= {c["type"]: c for c in body["status"]["conditions"]}
            self.node["status"]["conditions"] = list(by_type.values())
        else:
            assert kind == "application/merge-patch+json"
            self.node["spec"] |= body["spec"]
        self.node["metadata"]["resourceVersion"] = str(int(self.node["metadata"]["resourceVersion"]) + 1)
        return 200


class ApiHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        api = self.server
        api.calls.append(("list" if "?" in self.path else "get", "nodes"))
        listed = "node-bad" in self.path
        answer = deepcopy({"items": [api.node] if listed else []} if "?" in self.path else api.node)
        if "?" not in self.path and api.meanwhile:  # before who asks can go on
            api.meanwhile.pop()()
        self.answer(200, answer)

    def do_PATCH(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls.append(("patch", "nodes/status" if self.path.endswith("/status") else "nodes"))
        self.answer(self.server.patch(self.path, body, self.headers["content-type"]), {})

    def answer(self, status, body):
        assert self.headers["authorization"] == "Bearer t0ken"
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def served():
    """Starts servers; returns their URLs."""
    running = []

    def start(server):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def api(served):
    api = Api()
    api.url = served(api)
    return api


@pytest.fixture
def receiver(served, api, tmp_path):
    """Start it with an effect; returns its URL."""
    (tmp_path / "token").write_text("t0ken\n")
    return lambda effect="": served(Receiver(("127.0.0.1", 0), KEY, Cluster(api.url, tmp_path), effect))


def send(url, notice=NOTICE, key=KEY, **changed):
    Webhook(url, key, sleep=lambda _: None, **changed).send("id-1", json.dumps(notice).encode())


@pytest.mark.parametrize("form", ["plain", "cloudevents"])
def test_a_notice_sets_the_condition_and_no_taint_unless_one_is_wanted(api, receiver, form):
    api.node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    send(receiver(), NOTICE | {"type": "host.at_fault", "last_time": "2026-11-01T10:00:00Z"}, format=form)
    ready, condition = api.node["status"]["conditions"]
    assert (ready["type"], condition["type"], condition["status"]) == ("Ready", "DrumlineAtFault", "True")
    assert condition["message"] == NOTICE["text"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", condition["lastHeartbeatTime"])
    assert api.node["spec"]["taints"] == [OTHER]


def test_a_taint_joins_those_that_are_there_once(api, receiver):
    url = receiver("NoSchedule")
    send(url)
    send(url)
    assert api.node["spec"]["taints"] == [OTHER, {"key": "drumline/at-fault", "value": "true", "effect": "NoSchedule"}]


def test_a_taint_that_another_program_sets_meanwhile_is_not_lost(api, receiver):
    late = {"key": "late", "effect": "NoExecute"}
    api.meanwhile = [lambda: api.patch("/api/v1/nodes/n1", {"spec": {"taints": [OTHER, late]}},
                                       "application/merge-patch+json")]  # fmt: skip
    send(receiver("NoSchedule"))  # a conflict is answered with 503, and the webhook tries again
    assert [taint["key"] for taint in api.node["spec"]["taints"]] == ["gpu", "late", "drumline/at-fault"]


def test_a_foreign_or_old_signature_changes_nothing(api, receiver):
    url = receiver("NoSchedule")
    with pytest.raises(WebhookFailed, match="401"):
        send(url, key=bytes(32))
    with pytest.raises(WebhookFailed, match="401"):
        send(url, now=lambda: 1_000_000_000)
    assert api.calls == []


def test_a_host_without_a_node_is_taken_and_an_api_that_is_away_is_not(api, receiver, served, tmp_path):
    send(receiver(), {**NOTICE, "host": "elsewhere"})
    assert api.calls == [("list", "nodes")]
    away = served(Receiver(("127.0.0.1", 0), KEY, Cluster("http://127.0.0.1:9", tmp_path), ""))
    with pytest.raises(WebhookFailed, match="503"):
        send(away)


@pytest.mark.parametrize("status", [403, 404, 422])
def test_what_the_api_refuses_is_refused_at_once(api, receiver, status):
    api.refusals = [status]
    with pytest.raises(WebhookFailed, match="422") as failed:
        send(receiver())
    assert not failed.value.may_pass


@pytest.mark.parametrize("status", [408, 409, 429, 500])
def test_what_the_api_may_take_later_is_sent_again(api, receiver, status):
    api.refusals = [status]
    send(receiver())
    assert api.node["status"]["conditions"]


def test_the_chart_allows_what_it_calls_and_runs_this_module(api, receiver):
    send(receiver("NoSchedule"))
    rules = [yaml.safe_load(line) for line in re.findall(r"^- (\{apiGroups.*\})$", TEMPLATE, re.MULTILINE)]
    assert {(v, r) for rule in rules for v in rule["verbs"] for r in rule["resources"]} == set(api.calls)
    assert f"command: [python, -m, {node_taint.__name__}]" in TEMPLATE
    assert {"WEBHOOK_KEY_FILE", "TAINT"} == set(re.findall(r"name: ([A-Z_]+), value", TEMPLATE))
