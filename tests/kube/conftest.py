"""`make test-kube`: the chart against a real control plane, and on a node with real containers.

What the machine lacks is fetched once, or named (tests/support/kube/tools.py).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kube import tools
from support.kube.chart import CHART, write_grafana_files
from support.kube.control_plane import ControlPlane
from support.kube.null_device import check_null

CRDS = ("scaledobjects", "podmonitors", "prometheusrules", "kafkatopics", "kafkausers")
#: API groups of the CRDs, which helm does not ask the server for while it only renders.
GROUPS = ("keda.sh/v1alpha1", "monitoring.coreos.com/v1")


@pytest.fixture(scope="session", autouse=True)
def programs() -> Iterator[None]:
    tools.install()
    yield
    check_null("after the last test")


@pytest.fixture(autouse=True)
def null_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the session with the test that breaks /dev/null: the others would fail for no reason of their own."""
    yield
    try:
        check_null(f"after {request.node.nodeid}")
    except SystemExit as broken:
        pytest.exit(str(broken), 1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with the real CRDs."""
    folder = Path(tempfile.mkdtemp(prefix="drumline-kube-"))  # its paths are short: sockets are below
    plane = ControlPlane(folder)
    try:
        plane.start()
        for name in CRDS:
            plane.kubectl("apply", "--server-side", "-f", str(tools.crd(name)))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def render() -> Callable[..., str]:
    """render(values, *options): the chart's manifests, for a cluster with Strimzi's newest API or an older one."""

    write_grafana_files()

    def template(values: Path, *options: str, version: str = tools.KUBERNETES, strimzi: str = "v1") -> str:
        groups = [f"--api-versions={group}" for group in (*GROUPS, f"kafka.strimzi.io/{strimzi}")]
        return tools.run(
            tools.helm(), "template", "d", CHART, "--namespace", "drumline", "--values", values,
            "--kube-version", version, *groups, *options,
        )  # fmt: skip

    return template
