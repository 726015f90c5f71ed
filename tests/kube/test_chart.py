"""The chart renders what Kubernetes takes: by the strict schemas of its releases, and by a real API server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.kube import tools
from support.kube.chart import CHART, VALUES, resources

from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import Settings
from drumline.infra.config.validation import server_address
from drumline.infra.grafana.provisioning.files import data_source
from drumline.infra.kafka.topic_admin import declared_topics

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
#: Two servers, an own number of partitions, groups of other names.
SITE = (
    "--set", "clickhouse.replicas.b.url=http://ch-b:9123",
    "--set", "clickhouse.replicas.c.url=https://ch-c,clickhouse.replicas.c.acceptLoss=true",
    "--set", "kafka.topicPartitions.gpu\\.stack\\.v1=2,strimzi.enabled=true",
    "--set", "settings.DRUMLINE_SINK__GROUP=ours,settings.DRUMLINE_STREAM__APP_ID=our-streams",
)  # fmt: skip
#: From the oldest that the chart takes to the one that runs here.
RELEASES = [f"1.{minor}" for minor in range(29, int(tools.KUBERNETES.split(".")[1]) + 1)]
VALIDATE = """
import sys, kubernetes_validate as k, yaml
release, failed = sys.argv[1], []
for item in yaml.safe_load_all(sys.stdin):
    if item and not item["apiVersion"].startswith(("kafka.strimzi.io", "keda.sh", "monitoring.coreos.com")):
        try:
            k.validate(item, release, strict=True)
        except k.ValidationError as error:
            failed.append(f"{item['kind']}/{item['metadata']['name']}: {list(error.path)}: {error.message}")
print("\\n".join(failed))
sys.exit(bool(failed))
"""


def validate(release: str, text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE, release], input=text, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(tools.schemas())},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert done.returncode == 0 or done.stdout.strip(), done.stderr
    return done.stdout.strip()


def test_the_releases_are_those_that_chart_and_guide_name():
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={RELEASES[0]}.0-0"
    guide = (ROOT / "docs/guide/kubernetes.md").read_text()
    assert f"schemas of Kubernetes {RELEASES[0]} to {RELEASES[-1]}, and by a {RELEASES[-1]} server" in guide
    assert f"needs Kubernetes {RELEASES[0]}," in guide


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_value_set_is_valid_by_the_strict_schemas_of_a_release(render, values, release):
    injects = [] if release >= "1.34" else ["--set=inject.enabled=false"]  # before, there is no such policy
    assert validate(release, render(values, *injects, version=f"{release}.0")) == ""


def test_a_wrong_field_fails_the_schemas_with_its_name(render):
    text = render(VALUES[0]).replace("readinessProbe", "readynessProbe", 1)
    assert "readynessProbe" in validate("1.37", text)


@pytest.mark.parametrize("strimzi", ["v1", "v1beta2"])
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_value_set_is_taken_by_a_server_with_the_real_crds(plane, render, values, strimzi):
    plane.kubectl("create", "namespace", "kafka", check=False)  # of Strimzi's objects; the others go to the default
    text = render(values, strimzi=strimzi)
    versions = {item["apiVersion"] for item in resources(text) if "strimzi" in item["apiVersion"]}
    assert versions == ({f"kafka.strimzi.io/{strimzi}"} if values.name.startswith("full") else set())
    answered = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert answered.count("(server dry run)") == len(resources(text))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("readinessProbe", "readynessProbe"),  # of Kubernetes
        ("podMetricsEndpoints", "podMetricEndpoints"),  # of the Prometheus operator
        ("maxReplicaCount", "maxReplicasCount"),  # KEDA
        ("patternType", "paternType"),  # Strimzi
    ],
)
def test_a_wrong_field_is_refused_by_the_server_with_its_name(plane, render, right, wrong):
    plane.kubectl("create", "namespace", "kafka", check=False)
    text = render(CHART / "ci" / "full-values.yaml").replace(right, wrong)
    with pytest.raises(AssertionError, match=rf"exit 1\n(.|\n)*{wrong}"):
        plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("worker.replica=3", "replica"),
        ("settings.DRUMLINE_KAFKA__BOOTSTRP=x", "DRUMLINE_KAFKA__BOOTSTRP"),
        ("kafka.bootstrap=kafka", "bootstrap"),
        ("settings.DRUMLINE_KAFKA__REPLICATION=1", "DRUMLINE_KAFKA__REPLICATION"),
        ("kafka.topicPartitions.kernels=8", "kernels"),
        ("clickhouse.replicas.primary.url=http://b:1", "primary"),
        ("clickhouse.replicas.b.urls=http://b:1", "urls"),
        ("clickhouse.replicas.a-name-of-more-than-fifty-characters-with-the-release.url=http://b:1", "52 characters"),
        ("grafana.dataSource.password=secret", "password"),
        ("agent.resources.limits.memory=lots", "memory"),
    ],
)
def test_a_wrong_value_fails_with_its_name(render, option, named):
    with pytest.raises(RuntimeError, match=re.escape(named)):
        render(CHART / "ci" / "default-values.yaml", "--set", option)


def test_what_is_missing_is_asked_for(render):
    with pytest.raises(RuntimeError, match=r"kafka\.bootstrap: which brokers"):
        render(VALUES[0], "--set", "kafka.bootstrap=")
    with pytest.raises(RuntimeError, match="DRUMLINE_SERVE__TOKEN_FILE"):
        render(VALUES[0], "--set", "web.enabled=true")
    with pytest.raises(RuntimeError, match="MutatingAdmissionPolicy"):
        render(VALUES[0], "--set", "inject.enabled=true", version="1.33.0")


def test_no_pod_but_the_agents_asks_for_a_right(render):
    """Of each value set: no root, no capability, a read-only root, no token."""
    for values in VALUES:
        for item in resources(render(values)):
            template = item.get("spec", {}).get("template")
            if template is None:
                continue
            pod, kind = template["spec"], item["kind"]
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"], container["name"]
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"]["drop"] == ["ALL"]
                assert container["resources"]["requests"].keys() == {"cpu", "memory"}
                if kind != "DaemonSet":
                    assert pod["securityContext"]["runAsNonRoot"]
                    assert "add" not in context["capabilities"]


def pods(text):
    """Component -> the pod of its workload."""
    templates = [item["spec"]["template"] for item in resources(text) if "template" in item.get("spec", {})]
    return {item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"] for item in templates}


def settings_of(pod, monkeypatch):
    """Settings of a program in a pod that has no secret."""
    for variable in pod["containers"][0]["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "d-0"))
    return Settings()


def test_each_server_of_clickhouse_has_sinks_with_a_group_of_their_own(render, monkeypatch):
    options = (*SITE, "--set", "sink.autoscaling.enabled=true,networkPolicy.enabled=true")
    text = render(CHART / "ci" / "default-values.yaml", *options)
    parts, items = pods(text), resources(text)
    names = {"sink": "primary", "sink-b": "b", "sink-c": "c"}
    assert {name for name in parts if name.startswith("sink")} == names.keys()
    assert [parts[name]["containers"][0]["args"] for name in names] == [
        ["sink"], ["sink", "--replica", "b"], ["sink", "--replica", "c", "--accept-loss"]
    ]  # fmt: skip
    for kind in ("StatefulSet", "Service", "PodDisruptionBudget"):
        chosen = {}
        for item in items:
            if item["kind"] == kind and "-sink" in item["metadata"]["name"]:
                selector = item["spec"]["selector"]
                selector = selector.get("matchLabels", selector)
                chosen[item["metadata"]["name"]] = selector["app.kubernetes.io/component"]
        assert chosen == {f"d-{name}": name for name in names}, kind
    replicas = of_each(settings_of(parts["sink-b"], monkeypatch))
    groups = {replica: settings.sink.group for replica, settings in replicas.items()}
    assert groups == {"primary": "ours", "b": "ours-b", "c": "ours-c"}
    scaled = {
        item["metadata"]["name"]: item["spec"]["triggers"][0]["metadata"]["consumerGroup"]
        for item in items if item["kind"] == "ScaledObject"
    }  # fmt: skip
    assert scaled == {f"d-{name}": groups[replica] for name, replica in names.items()}
    assert of_each(settings_of(parts["migrations"], monkeypatch)).keys() == groups.keys()  # `migrate` goes over all
    [policy] = [item for item in items if item["kind"] == "NetworkPolicy"]
    servers = {server_address(settings.clickhouse.url)[1] for settings in replicas.values()}
    assert {port["port"] for port in policy["spec"]["egress"][1]["ports"]} == {9092, *servers}
    users = {
        item["metadata"]["name"]: item["spec"]["authorization"]["acls"] for item in items if item["kind"] == "KafkaUser"
    }
    for user, operation in (("d-sink", "Read"), ("d-auditor", "Describe")):
        of_groups = [acl for acl in users[user] if acl["resource"]["type"] == "group"]
        assert {acl["resource"]["name"] for acl in of_groups} == set(groups.values())
        assert {tuple(acl["operations"]) for acl in of_groups} == {(operation,)}
    names = {acl["resource"]["name"] for acl in users["d-worker"]}
    assert {"our-streams", "our-streams-"} <= names
    assert not {name for name in names if name.startswith("drumline-streams")}


@pytest.mark.parametrize("options", [SITE, ("--set", "strimzi.enabled=true,kafka.replication=1")])
def test_topics_of_strimzi_are_those_that_the_programs_declare(render, monkeypatch, options):
    text = render(CHART / "ci" / "default-values.yaml", *options)
    declared = declared_topics(settings_of(pods(text)["worker"], monkeypatch))
    topics = {item["metadata"]["name"]: item["spec"] for item in resources(text) if item["kind"] == "KafkaTopic"}
    assert topics == {
        topic.name: {"partitions": topic.partitions, "replicas": topic.replication, "config": topic.config}
        for topic in declared
    }


def test_the_data_sources_are_those_that_drumline_makes_without_a_password(render):
    options = (*SITE, "--set", "grafana.dataSource.enabled=true,clickhouse.url=https://ch-a")
    [config] = [
        item for item in resources(render(CHART / "ci" / "default-values.yaml", *options))
        if item["metadata"]["labels"].get("grafana_datasource")
    ]  # fmt: skip
    [text] = config["data"].values()
    password = {"password": "$__env{DRUMLINE_CLICKHOUSE_PASSWORD}"}
    assert yaml.safe_load(text)["datasources"] == [
        {**data_source(host, port, "grafana", "gpu", secure, "http", replica), "secureJsonData": password}
        for host, port, secure, replica in (
            ("ch-a", 8443, True, ""), ("ch-b", 9123, False, "b"), ("ch-c", 8443, True, "c")
        )
    ]  # fmt: skip


def test_the_guides_values_give_the_password_to_who_writes_alone(render, tmp_path):
    [values] = re.findall(r"```yaml\n(image: .*?)```", (ROOT / "docs/guide/kubernetes.md").read_text(), re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    for name, pod in pods(render(tmp_path / "values.yaml")).items():
        has = any(volume["name"] == "secrets" for volume in pod["volumes"])
        assert has == (name in ("sink", "migrations")), name


def test_scraped_programs_have_the_labels_of_the_rules(render):
    """As infra/prometheus/scrape.yml gives them, also to the sinks of a further server."""
    text = render(CHART / "ci" / "default-values.yaml", *SITE, "--set", "podMonitor.enabled=true")
    [monitor] = [item for item in resources(text) if item["kind"] == "PodMonitor"]
    [example] = yaml.safe_load((ROOT / "infra/prometheus/scrape.yml").read_text())["scrape_configs"]
    expected = {(example["job_name"], target["labels"]["program"]) for target in example["static_configs"]}
    given = set()
    for component in pods(text).keys() - {"migrations"}:
        labels = {}
        for rule in monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]:
            source = component if "component" in str(rule.get("sourceLabels")) else ""
            if match := re.fullmatch(rule.get("regex", "(.*)"), source):
                labels[rule["targetLabel"]] = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
        given.add((labels["job"], labels["program"]))
    assert given == expected
