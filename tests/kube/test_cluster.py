"""The chart in a cluster of nodes without machines: install, evictions, upgrade, rollback, rights, injection."""

import copy
import json

import pytest
from support.kube.chart import CHART
from support.kube.fake_kubelet import FakeKubelet

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]
SMALL = str(CHART / "ci" / "small-values.yaml")
GPU = {"nvidia.com/gpu.present": "true"}
NODES = {"gpu-1": GPU, "gpu-2": GPU, "cpu-1": {}}
OPTIONS = (
    "--values", SMALL, "--set", "sink.replicas=2", "--set", "inject.failurePolicy=Fail",
    "--set", "clickhouse.replicas.b.url=http://clickhouse-b:8123",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(plane):
    """The chart, installed on three nodes."""
    nodes = FakeKubelet(plane, NODES)
    nodes.start()
    for name in ("fleet", "train"):
        plane.kubectl("create", "namespace", name)
    plane.kubectl("label", "namespace", "train", "pod-security.kubernetes.io/enforce=privileged")
    try:
        plane.helm("install", "d", str(CHART), "-n", "fleet", *OPTIONS, "--wait", "--timeout", "120s")
        yield plane
    finally:
        plane.helm("uninstall", "d", "-n", "fleet", "--wait", check=False)
        nodes.stop()
        for name in NODES:
            plane.kubectl("delete", "node", name, check=False)


def pods(cluster, component):
    return cluster.get("pods", "-n", "fleet", "-l", f"app.kubernetes.io/component={component}")["items"]


def evict(cluster, pod):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "fleet"}}
    return cluster.kubectl(
        "create",
        "--raw",
        f"/api/v1/namespaces/fleet/pods/{pod}/eviction",
        "-f",
        "-",
        stdin=json.dumps(body),
        check=False,
    )


def test_agents_run_on_gpu_nodes_and_the_others_have_names_of_their_own(cluster):
    assert sorted(pod["spec"]["nodeName"] for pod in pods(cluster, "agent")) == ["gpu-1", "gpu-2"]
    assert sorted(pod["metadata"]["name"] for pod in pods(cluster, "sink")) == ["d-sink-0", "d-sink-1"]
    assert sorted(pod["metadata"]["name"] for pod in pods(cluster, "sink-b")) == ["d-sink-b-0", "d-sink-b-1"]


def test_a_second_eviction_is_denied_but_for_sinks_of_another_server(cluster):
    names = ["d-sink-0", "d-sink-1"]
    assert '"status":"Success"' in evict(cluster, names[0]).replace(" ", "")
    assert "disruption budget" in evict(cluster, names[1])
    assert '"status":"Success"' in evict(cluster, "d-sink-b-0").replace(" ", "")
    for name in ("d-sink", "d-sink-b"):
        cluster.wait(lambda name=name: len(ready(cluster, name)) == 2, 60, f"pods of {name} are ready again")


def ready(cluster, name):
    status = cluster.get("statefulset", name, "-n", "fleet")["status"]
    return range(status.get("readyReplicas", 0))


def test_an_upgrade_and_its_rollback(cluster):
    cluster.helm(
        "upgrade", "d", str(CHART), "-n", "fleet", *OPTIONS, "--set", "sink.replicas=3", "--wait", "--timeout", "120s"
    )
    assert len(ready(cluster, "d-sink")) == 3
    cluster.helm("rollback", "d", "1", "-n", "fleet", "--wait", "--timeout", "120s")
    cluster.wait(lambda: len(pods(cluster, "sink")) == 2, 60, "two sinks")


def rights(cluster, account):
    """Rights of an account beyond those of all accounts."""
    listed = cluster.kubectl("auth", "can-i", "--list", "--no-headers", f"--as=system:serviceaccount:fleet:{account}")
    default = cluster.kubectl(
        "auth", "can-i", "--list", "--no-headers", "--as=system:serviceaccount:kube-system:nobody"
    )
    return {" ".join(line.split()) for line in listed.splitlines()} - {
        " ".join(line.split()) for line in default.splitlines()
    }


def test_accounts_have_no_right_but_the_receiver_of_notices_on_nodes(cluster, render):
    assert {
        pod["spec"]["serviceAccountName"] for part in ("agent", "worker", "sink", "web") for pod in pods(cluster, part)
    } == {"default"}
    assert rights(cluster, "default") == set()
    text = render(CHART / "ci" / "full-values.yaml", "--namespace", "fleet", "--show-only", "templates/node-taint.yaml")
    cluster.kubectl("apply", "-f", "-", stdin=text)
    assert rights(cluster, "d-node-taint") == {"nodes/status [] [] [patch]", "nodes [] [] [get list patch]"}
    cluster.kubectl("delete", "-f", "-", stdin=text)


def test_a_namespace_for_restricted_pods_takes_all_but_agents(cluster):
    cluster.kubectl("create", "namespace", "strict")
    cluster.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    cluster.helm(
        "install", "s", str(CHART), "-n", "strict", "--values", SMALL, "--set", "inject.enabled=false",
        "--set", "agent.enabled=false", "--wait", "--timeout", "120s",
    )  # fmt: skip
    cluster.helm("uninstall", "s", "-n", "strict", "--wait")


#: A container with everything that injection must leave as it is.
CONTAINER = {
    "name": "train", "image": "train", "command": ["python", "train.py"],
    "env": [
        {"name": "PYTHONPATH", "value": "/app/src"},
        {"name": "NCCL_PROFILER_PLUGIN", "value": "/app/libtheirs.so"},
        {"name": "DRUMLINE_LABELS", "value": "team=mine"},
    ],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}  # fmt: skip
POD = {
    "restartPolicy": "Never",
    "volumes": [{"name": "data", "emptyDir": {}}],
    "initContainers": [{"name": "fetch", "image": "fetch"}],
    "containers": [CONTAINER, {"name": "side", "image": "side"}],
}


def job(name, labels):
    template = {"metadata": {"labels": labels}, "spec": POD}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "train"}, "spec": spec}


def variables(pod, container):
    [chosen] = [item for item in pod["spec"]["containers"] if item["name"] == container]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in chosen["env"]}


@pytest.fixture(scope="module")
def recorded(cluster):
    """Pods of a Job that is recorded."""
    cluster.wait(
        lambda: "drumline-spool" in created(cluster, {"drumline.dev/record": "true"}), 60, "the policy is in force"
    )
    cluster.apply(job("llama", {"drumline.dev/record": "true", "team": "vision", "user": "ada"}))
    return cluster.wait(
        lambda: (lambda created_pods: created_pods if len(created_pods) == 2 else None)(
            cluster.get("pods", "-n", "train", "-l", "batch.kubernetes.io/job-name=llama")["items"]
        ), 60, "two pods",
    )  # fmt: skip


def created(cluster, labels, spec=POD, **metadata):
    """A pod as the server would create it, as JSON."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "train", "labels": labels, **metadata},
        "spec": spec,
    }
    return cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))


def test_pods_of_a_job_get_one_run_and_the_names_of_job_node_pod_and_container(cluster, recorded):
    uid = cluster.get("job", "llama", "-n", "train")["metadata"]["uid"]
    for pod in recorded:
        for name in ("train", "side"):
            env = variables(pod, name)
            assert (env["DRUMLINE_RUN"], env["DRUMLINE_JOB"], env["CONTAINER_NAME"]) == (uid, "llama", name)
            assert env["DRUMLINE_HOST"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            assert env["POD_NAME"]["fieldRef"]["fieldPath"] == "metadata.name"
        assert variables(pod, "side")["DRUMLINE_LABELS"] == "team=vision,user=ada"


def test_what_a_container_sets_itself_stays(recorded):
    for pod in recorded:
        env = variables(pod, "train")
        assert env["DRUMLINE_PYTHONPATH"] == "/app/src"
        assert env["PYTHONPATH"].endswith("/startup:$(DRUMLINE_PYTHONPATH)")
        assert env["DRUMLINE_RINGS__CHAIN"] == "/app/libtheirs.so"
        assert env["NCCL_PROFILER_PLUGIN"].startswith("/drumline/")
        assert env["DRUMLINE_LABELS"] == "team=mine"
        names = [item["name"] for item in pod["spec"]["volumes"] if not item["name"].startswith("kube-api-access")]
        assert names == ["data", "drumline", "drumline-spool"]
        assert [item["name"] for item in pod["spec"]["initContainers"]] == ["drumline", "fetch"]


def test_a_pod_without_variables_of_its_own_is_recorded_too(cluster, recorded):
    bare = {"containers": [{"name": "train", "image": "train", "envFrom": [{"configMapRef": {"name": "env"}}]}]}
    pod = json.loads(created(cluster, {"drumline.dev/record": "true"}, bare))
    env = variables(pod, "train")
    assert env["DRUMLINE_RUN"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert env["DRUMLINE_JOB"] == "one"
    assert env["PYTHONPATH"].endswith("/startup:$(PYTHONPATH)")
    annotated = {"annotations": {"drumline.dev/pythonpath": "/image/src"}}
    bare = {"containers": [{"name": "train", "image": "train"}]}
    pod = json.loads(created(cluster, {"drumline.dev/record": "true"}, bare, **annotated))
    assert variables(pod, "train")["PYTHONPATH"].endswith("/startup:/image/src")


@pytest.mark.parametrize("attempt", [{}, {"restart-attempt": "0"}, {"restart-attempt": "2"}])
def test_pods_of_a_jobset_share_a_run_also_when_it_starts_them_again(cluster, recorded, attempt):
    jobset = {"jobset-uid": "u", "jobset-name": "set", **attempt}
    labels = {f"jobset.sigs.k8s.io/{name}": value for name, value in jobset.items()}
    env = variables(json.loads(created(cluster, {"drumline.dev/record": "true", **labels})), "side")
    assert (env["DRUMLINE_RUN"], env["DRUMLINE_JOB"]) == ("u", "set")


def test_a_pod_without_the_label_is_not_touched(cluster, recorded):
    pod = json.loads(created(cluster, {"team": "vision"}))
    expected = copy.deepcopy(POD)
    for kind in ("containers", "initContainers"):
        for written, stored in zip(expected[kind], pod["spec"][kind], strict=True):
            assert written.get("env") == stored.get("env")
            mounts = [item for item in stored.get("volumeMounts", []) if not item["name"].startswith("kube-api-access")]
            assert written.get("volumeMounts", []) == mounts
    assert "drumline" not in json.dumps(pod["spec"])


def test_injected_pods_pass_by_the_strict_schema(cluster, recorded):
    for pod in recorded:
        pod = {**pod, "metadata": {"name": "again", "namespace": "train"}, "status": {}}
        cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(pod))
