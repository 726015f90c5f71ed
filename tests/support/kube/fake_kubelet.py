"""Nodes without machines: their pods become running and ready at once, and end when they are deleted."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

from support.kube.control_plane import ControlPlane

READY = ("Initialized", "Ready", "ContainersReady", "PodScheduled")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeKubelet(threading.Thread):
    """`start` creates the nodes and follows their pods until `stop`. Pods of Jobs succeed."""

    def __init__(self, plane: ControlPlane, nodes: dict[str, dict[str, str]]) -> None:
        super().__init__(daemon=True)
        self._plane, self._nodes, self._halt = plane, nodes, threading.Event()

    def start(self) -> None:
        for name, labels in self._nodes.items():
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
            self._plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "100Gi"}
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastHeartbeatTime": now(),
                "lastTransitionTime": now(),
            }
            status = {"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}}
            self._plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
            self._plane.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", check=False)
        super().start()

    def stop(self) -> None:
        self._halt.set()
        self.join()

    def run(self) -> None:
        while not self._halt.wait(0.3):
            listed = self._plane.kubectl("get", "pods", "-A", "-o", "json", check=False)
            try:
                pods = json.loads(listed)["items"]
            except ValueError:
                continue
            for pod in pods:
                self._follow(pod)

    def _follow(self, pod: dict) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        if pod["metadata"].get("deletionTimestamp"):
            self._plane.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=0", "--force", check=False)
        elif pod["status"].get("phase") == "Pending":
            owners = pod["metadata"].get("ownerReferences", [])
            ends = any(owner["kind"] == "Job" for owner in owners)
            state = (
                {"terminated": {"exitCode": 0, "startedAt": now(), "finishedAt": now()}}
                if ends
                else {"running": {"startedAt": now()}}
            )
            containers = [
                {
                    "name": item["name"],
                    "image": item["image"],
                    "imageID": "",
                    "ready": not ends,
                    "restartCount": 0,
                    "started": True,
                    "state": state,
                }
                for item in pod["spec"]["containers"]
            ]
            conditions = [{"type": kind, "status": "True", "lastTransitionTime": now()} for kind in READY]
            status = {
                "phase": "Succeeded" if ends else "Running",
                "podIP": "10.1.0.1",
                "startTime": now(),
                "conditions": conditions,
                "containerStatuses": containers,
            }
            self._plane.kubectl(
                "-n",
                namespace,
                "patch",
                "pod",
                name,
                "--subresource=status",
                "--type=merge",
                "-p",
                json.dumps({"status": status}),
                check=False,
            )
