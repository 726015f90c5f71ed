"""A node with real containers: rows of an injected job reach ClickHouse while pods are killed and upgraded."""

import json
import shutil
import socket
import subprocess
import textwrap
import threading
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.fakes.cupti import RAW, plain_bytes
from support.fakes.tcp_proxy import Proxy
from support.kube import images, tools
from support.kube.chart import CHART
from support.kube.node import GATEWAY, Node
from support.published_spool import is_published
from support.torch_stub import TORCH

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.config.local_credentials import local_password
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, free_ports, run_audit
from drumline.infra.localstack.kafka import broker

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
#: Ranks, steps and collectives of a step of the C program (fake_nccl.c).
RANKS, STEPS, PER_STEP = 2, 20, 2
#: Python of the images' base, Debian's.
BASE = {"python_full_version": "3.11.2", "python_version": "3.11"}
INDEX = "batch.kubernetes.io/job-completion-index"
#: Tables that have rows of the job's processes, and of the agent's samples of them, at least.
TABLES = {"processes", "kernels", "memcpys", "steps", "collectives", "host_samples", "progress"}


class Front(Proxy):
    """ClickHouse for pods: the local engine listens on loopback alone."""

    def __init__(self, target: int) -> None:
        self.target, self.delay_s, self.closed, self.answer = target, 0.0, False, b""
        self._server = socket.create_server((GATEWAY, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()


@pytest.fixture(scope="module")
def job_image(tmp_path_factory):
    """The image of a job: its own Python and numpy, no drumline."""
    folder = tmp_path_factory.mktemp("job")
    for path in (ROOT / "tests" / "data" / "kube_job").iterdir():
        shutil.copy(path, folder)
    for name, text in {
        **TORCH,
        "sitecustomize.py": "",
        "support/__init__.py": "",
        "support/fakes/__init__.py": "",
    }.items():
        path = folder / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    shutil.copy(ROOT / "tests/support/fakes/cupti.py", folder / "lib/support/fakes")
    shutil.copytree(RAW, folder / "lib/data/raw_cupti")
    (folder / "plain").mkdir()
    size = json.loads((RAW / "ddp_steps.json").read_text())["bytes"]
    (folder / "plain" / "ddp_steps").write_bytes(plain_bytes("ddp_steps", size))
    subprocess.run([*COMPILER, "-o", folder / "fake-nccl", PROGRAMS / "fake_nccl.c", *FAKE], check=True)
    lines = (ROOT / "infra/requirements/image.txt").read_text().splitlines()
    wanted = (Requirement(line.rstrip(" \\")) for line in lines if line.startswith("numpy=="))
    [numpy] = [f"numpy{r.specifier}" for r in wanted if not r.marker or r.marker.evaluate(BASE)]
    tools.run("python3", "-m", "pip", "download", "--quiet", "--no-deps", "--python-version", "3.11",
              "--only-binary", ":all:", "--dest", folder / "wheels", numpy)  # fmt: skip
    images.build_job(folder)


@pytest.fixture(scope="module")
def node(plane, job_image, tmp_path_factory):
    images.build()
    images.build_pause(tmp_path_factory.mktemp("pause"))
    node = Node(plane, {"nvidia.com/gpu.present": "true"})
    try:
        node.start()
        for image in (images.PAUSE, images.DRUMLINE, images.JOB):
            node.load(image)
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="module")
def stack(node, jars, tmp_path_factory):
    """Broker and engine that pods reach at the bridge's address. Yields settings, and the two addresses."""
    settings = ephemeral_settings(tmp_path_factory.mktemp("stack"), jars.parent)
    [port] = free_ports(1)
    plain = broker.properties

    def properties(config, number=1):
        text = plain(config, number)
        [listeners] = [line.partition("=")[2] for line in text.splitlines() if line.startswith("listeners=")]
        listeners += f",PODS://{GATEWAY}:{port}"
        kinds = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PODS:PLAINTEXT"
        lines = {"listeners": listeners, "advertised.listeners": listeners, "listener.security.protocol.map": kinds}
        return text + "".join(f"{name}={value}\n" for name, value in lines.items())

    broker.properties = properties
    try:
        local_stack.up(settings)
        front = Front(settings.local.clickhouse_http_port)
        yield settings, f"{GATEWAY}:{port}", f"http://{GATEWAY}:{front.port}"
        front.close()
    finally:
        broker.properties = plain
        local_stack.down(settings)


@pytest.fixture(scope="module")
def options(plane, node, stack):
    """Options of helm for this node."""
    settings, bootstrap, url = stack
    spool = node.folder / "spool"
    values = {
        "image": {"repository": images.DRUMLINE.split(":")[0], "tag": "test", "pullPolicy": "Never"},
        "kafka": {"bootstrap": bootstrap, "partitions": settings.kafka.partitions, "replication": 1},
        "clickhouse": {"url": url},
        "secrets": {"DRUMLINE_CLICKHOUSE__PASSWORD_FILE": {"name": "clickhouse", "key": "writer"}},
        "agent": {"spool": str(spool), "settings": {"DRUMLINE_AGENT__GPU_S": 0}},
        "worker": {"replicas": 1, "settings": {"DRUMLINE_STREAM__WINDOW_STEPS": 5, "DRUMLINE_STREAM__IDLE_S": 2}},
        "sink": {"replicas": 1},
        "inject": {"enabled": True, "failurePolicy": "Fail", "labels": {"team": "team"}},
    }
    file = node.folder / "values.json"
    file.write_text(json.dumps(values))
    for name in ("node", "node-train"):
        plane.kubectl("create", "namespace", name)
    password = local_password(settings, "writer").get_secret_value()
    plane.kubectl("-n", "node", "create", "secret", "generic", "clickhouse", f"--from-literal=writer={password}")
    return ["-n", "node", "--values", str(file), "--wait", "--timeout", "240s"]


@pytest.fixture(scope="module")
def chart(plane, options):
    """The chart, installed: its programs answer their probes at the pods' addresses."""
    try:
        plane.helm("install", "d", str(CHART), *options)
    except AssertionError as error:
        pods = plane.kubectl("-n", "node", "describe", "pods", check=False)
        logs = plane.kubectl(
            "-n", "node", "logs", "--all-containers", "--tail=30", "-l", "app.kubernetes.io/name=drumline", check=False
        )
        raise AssertionError(f"{error}\n{pods[-6000:]}\n{logs[-3000:]}") from None
    yield
    plane.helm("uninstall", "d", "-n", "node", "--wait", "--timeout", "120s")


def job(control):
    """The job; it ends when the folder `control` of the node has the file `end`."""
    container = {
        "name": "main", "image": images.JOB, "imagePullPolicy": "Never", "command": ["sh", "/job/run.sh"],
        "env": [
            {"name": "PYTHONPATH", "value": "/job/lib"},
            {"name": "RAW_CUPTI_PLAIN", "value": "/job/plain"},
            {"name": "WORLD_SIZE", "value": "2"},
            {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}},
            {"name": "END", "value": "/control/end"},
        ],
        "volumeMounts": [{"name": "control", "mountPath": "/control", "readOnly": True}],
    }  # fmt: skip
    volume = {"name": "control", "hostPath": {"path": str(control), "type": "Directory"}}
    labels = {"drumline.dev/record": "true", "team": "vision"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]},
    }
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "node-train"},
        "spec": spec,
    }


def pod_of(plane, part):
    pods = plane.get("pods", "-n", "node", "-l", f"app.kubernetes.io/component={part}")["items"]
    return next((pod for pod in pods if not pod["metadata"].get("deletionTimestamp")), None)


def is_ready(pod):
    return pod and all(item["ready"] for item in pod["status"].get("containerStatuses", [{"ready": False}]))


def finished(plane):
    status = plane.get("job", "train", "-n", "node-train")["status"]
    assert not status.get("failed"), plane.kubectl(
        "-n", "node-train", "logs", "-l", "job-name=train", "--tail=50", check=False
    )
    return status.get("succeeded") == 2


def with_status_of(settings, plane, node):
    """Settings by which `wait_stored` finds the status of the worker: in its pod's volume."""
    uid = pod_of(plane, "worker")["metadata"]["uid"]
    folder = node.folder / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "data"
    return settings.model_copy(update={"stream": settings.stream.model_copy(update={"data_dir": folder})})


def settled_audit(settings):
    """The audit, once what the agent goes on to publish is stored too: it samples while there is no job."""
    for _ in range(30):
        audit = run_audit(environment(settings))
        if {finding["kind"] for finding in audit["findings"]} != {"not_drained"}:
            break
    return audit


def printed(plane):
    """Return what the pods of the job had to be recorded of: lines of JSON."""
    text = plane.kubectl("-n", "node-train", "logs", "-l", "job-name=train", "-c", "main", "--tail=-1")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def kill(plane, part):
    """Kill the pod of a part, and wait for the next one."""
    pod = pod_of(plane, part)
    plane.kubectl("-n", "node", "delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")

    def replaced():
        now = pod_of(plane, part)
        return is_ready(now) and now["metadata"]["uid"] != pod["metadata"]["uid"]

    plane.wait(replaced, 240, f"another {part}")


@pytest.fixture
def query(stack):
    settings, _, _ = stack
    client = connect(settings, database="gpu")
    yield lambda sql: rows(client, sql)
    client.close()


def test_rows_of_an_injected_job_reach_clickhouse_while_pods_are_killed(plane, chart, options, stack, node, query):
    settings, _, _ = stack
    control = node.folder / "control"
    control.mkdir()
    plane.apply(job(control))

    def kernels():
        assert not finished(plane), "it goes on until it is told"
        return query("SELECT count() AS n FROM kernels")[0]["n"]

    plane.wait(kernels, 300, "its pods run, and rows of theirs are stored")
    for part in ("agent", "worker", "sink"):
        kill(plane, part)
    plane.helm("upgrade", "d", str(CHART), *options, "--set-string", "settings.DRUMLINE_LOG_LEVEL=DEBUG")
    before = kernels()
    plane.wait(lambda: kernels() > before, 240, "more is stored")
    (control / "end").touch()
    plane.wait(lambda: finished(plane), 240, "the job ends")
    uid = plane.get("job", "train", "-n", "node-train")["metadata"]["uid"]
    plane.wait(lambda: is_published(node.folder / "spool"), 240, "the agent publishes the rest")
    waited = wait_stored(with_status_of(settings, plane, node), 240)
    assert waited, waited.reason
    processes = query(
        "SELECT job, rank, run, host, k8s_namespace, k8s_pod, k8s_container, labels FROM processes WHERE job != ''"
    )
    assert {(row["job"], row["rank"]) for row in processes} == {
        ("train", 0),
        ("train", 1),
        ("c-job", 0),
        ("c-job", 1),
    }
    assert {row["run"] for row in processes} == {uid}
    assert {(row["host"], row["k8s_namespace"], row["k8s_container"]) for row in processes} == {
        ("node-a", "node-train", "main")
    }
    assert {row["k8s_pod"].rpartition("-")[0] for row in processes} == {"train-0", "train-1"}
    assert all(row["labels"] == {"team": "vision"} for row in processes)
    assert query("SELECT topic, sum(dropped_before) AS rows FROM ledger GROUP BY topic HAVING rows > 0") == []
    lines = printed(plane)
    delivered = [line["delivered"] for line in lines if "delivered" in line]
    [rounds] = [line["rounds"] for line in lines if "rounds" in line]
    assert len(delivered) == 2
    expected = {
        "kernels": sum(kinds["10"] for kinds in delivered),
        "memcpys": sum(kinds["1"] + kinds["2"] for kinds in delivered),
        "collectives": RANKS * STEPS * PER_STEP * rounds,
        "steps": RANKS * STEPS * rounds,
    }
    counted = {
        table: query(f"SELECT count() AS n FROM {table}{where}")[0]["n"]
        for table, where in {
            "kernels": "", "memcpys": "", "collectives": " WHERE source = 'nccl'", "steps": " WHERE source = 'nccl'"
        }.items()
    }  # fmt: skip
    assert counted == expected, "what is stored is what the fakes delivered"
    print(counted)
    assert hosts(query) == {"node-a"}
    audit = settled_audit(settings)
    assert audit["clean"], audit


def hosts(query):
    """Return the hosts that rows name, of all tables; TABLES must have some. Rows of a whole job have none."""
    tables = query("SELECT DISTINCT table AS place FROM system.columns WHERE database = 'gpu' AND name = 'host'")
    named = {}
    for place in (row["place"] for row in tables):
        [answer] = query(f"SELECT groupUniqArray(toString(host)) AS hosts FROM {place} WHERE host != ''")
        if answer["hosts"]:
            named[place] = set(answer["hosts"])
    assert named.keys() >= TABLES, named
    return set().union(*named.values())


def test_programs_end_in_order_when_they_are_asked_to(plane, chart, node):
    """By SIGTERM alone, well within a pod's 30 s: the kubelet starts the container again."""
    for part in ("agent", "worker", "sink"):
        pod = plane.wait(
            lambda part=part: (lambda stored: stored if is_ready(stored) else None)(pod_of(plane, part)), 120, part
        )
        name, [status] = pod["metadata"]["name"], pod["status"]["containerStatuses"]
        socket_path = node.folder / "containerd.sock"
        container = status["containerID"].removeprefix("containerd://")
        tools.run("ctr", "--address", socket_path, "-n", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", container)

        def ended(name=name, before=status["restartCount"]):
            [now] = plane.get("pod", name, "-n", "node")["status"]["containerStatuses"]
            return now["lastState"].get("terminated") if now["restartCount"] > before else None

        assert plane.wait(ended, 60, f"{part} ends")["exitCode"] == 0


def test_a_pod_that_is_not_recorded_has_nothing_of_drumline(plane, chart):
    container = {"name": "main", "image": images.JOB, "imagePullPolicy": "Never", "command": ["env"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": "node-train"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    plane.apply(pod)
    plane.wait(lambda: plane.get("pod", "plain", "-n", "node-train")["status"]["phase"] == "Succeeded", 60, "it ends")
    assert "drumline" not in plane.kubectl("-n", "node-train", "logs", "plain").lower()
