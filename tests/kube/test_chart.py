"""The chart renders what Kubernetes takes: by the strict schemas of its releases, and by a real API server."""

import subprocess
import sys

import pytest
from support.kube import tools
from support.kube.chart import CHART, VALUES, resources

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1200)]
RELEASES = ("1.29", "1.31", "1.33", "1.34", "1.36", "1.37")
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


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_value_set_is_valid_by_the_strict_schemas_of_a_release(render, values, release):
    injects = [] if release >= "1.34" else ["--set=inject.enabled=false"]  # before, there is no such policy
    assert validate(release, render(values, *injects, version=f"{release}.0")) == ""


def test_a_wrong_field_fails_the_schemas_with_its_name(render):
    text = render(VALUES[0]).replace("readinessProbe", "readynessProbe", 1)
    assert "readynessProbe" in validate("1.37", text)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_value_set_is_taken_by_a_server_with_the_real_crds(plane, render, values):
    plane.kubectl("create", "namespace", "kafka", check=False)  # of Strimzi's objects; the others go to the default
    answered = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=render(values))
    assert answered.count("(server dry run)") == len(resources(render(values)))


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
    answered = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text, check=False)
    assert wrong in answered


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("worker.replica=3", "replica"),
        ("settings.DRUMLINE_KAFKA__BOOTSTRP=x", "DRUMLINE_KAFKA__BOOTSTRP"),
        ("kafka.bootstrap=kafka", "bootstrap"),
        ("agent.resources.limits.memory=lots", "memory"),
    ],
)
def test_a_wrong_value_fails_with_its_name(render, option, named):
    with pytest.raises(RuntimeError, match=named):
        render(VALUES[0], "--set", option)


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
