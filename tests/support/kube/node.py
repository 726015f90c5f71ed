"""A node with real containers: containerd and a real kubelet as processes, pods on a bridge of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.kube import images, tools
from support.kube.control_plane import NODE, ControlPlane

from drumline.infra.localstack.ephemeral import free_ports

BRIDGE, SUBNET, GATEWAY = "drumline-kube", "10.213.0.0/24", "10.213.0.1"


class Node:
    """`start` makes the node ready; `stop` ends its pods and processes and removes the bridge."""

    def __init__(self, plane: ControlPlane, labels: dict[str, str]) -> None:
        self._plane, self._labels = plane, labels
        self.folder = plane.folder / "node"
        self._socket = self.folder / "containerd.sock"

    def start(self) -> None:
        for name in ("cni", "kubelet", "root", "state", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
        tools.run("ip", "link", "add", BRIDGE, "type", "bridge")
        tools.run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        tools.run("ip", "link", "set", BRIDGE, "up")
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": SUBNET, "gateway": GATEWAY}]],
            "dataDir": str(self.folder / "ipam"),
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        network = {
            "cniVersion": "0.4.0", "name": "pods",
            "plugins": [{"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": ipam}],
        }  # fmt: skip
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        configuration = self.folder / "containerd.toml"
        configuration.write_text(self._containerd())
        enter = self._own_mounts()
        self._plane.spawn("containerd", *enter, "/usr/bin/containerd", "--config", configuration)
        self._plane.wait(self._socket.exists, 60, "containerd")
        (port, health) = free_ports(2)
        kubelet = self.folder / "kubelet.json"
        kubelet.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": GATEWAY, "port": port, "healthzPort": health,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}", "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False, "oomScoreAdj": 0, "maxOpenFiles": 20000, "syncFrequency": "2s",
            "nodeStatusUpdateFrequency": "2s", "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi"}, "resolvConf": "", "podLogsDir": str(self.folder / "logs"),
        }))  # fmt: skip
        labels = ",".join(f"{name}={value}" for name, value in self._labels.items())
        self._kubelet = self._plane.spawn(
            "kubelet", *enter, tools.program("kubelet"), f"--config={kubelet}",
            f"--kubeconfig={self._plane.kubeconfig(self._plane.node, NODE)}",
            f"--hostname-override={self._plane.node}", f"--root-dir={self.folder}/kubelet",
            f"--node-labels={labels}", f"--node-ip={GATEWAY}", f"--cert-dir={self.folder}/pki",
        )  # fmt: skip
        self._plane.wait(self._ready, 120, "the node is not ready")
        # Its controller does not run here: other tests have nodes without heartbeats.
        self._plane.kubectl("taint", "node", self._plane.node, "node.kubernetes.io/not-ready-", check=False)

    def _own_mounts(self) -> list[str]:
        """Return the beginning of commands that see mounts of their own, which end with them.

        Some machines have an empty cgroup2 above the hierarchies with controllers: it is taken away there.
        """
        places = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        kinds = [kind for _, place, kind, *_ in places if place == "/sys/fs/cgroup"]
        hidden = kinds[:1] == ["tmpfs"] and kinds[-1] == "cgroup2"
        marker = self.folder / "mounts"
        remedy = "umount /sys/fs/cgroup; " if hidden else ""
        holder = self._plane.spawn(
            "mounts", "unshare", "--mount", "sh", "-ec", f"{remedy}touch {marker}; exec sleep infinity"
        )
        self._plane.wait(marker.exists, 60, "a namespace of mounts")
        return ["nsenter", f"--target={holder.pid}", "--mount", "--"]

    def _ready(self) -> bool:
        listed = self._plane.kubectl("get", "node", self._plane.node, "-o", "json", check=False)
        try:
            conditions = json.loads(listed)["status"]["conditions"]
        except (ValueError, KeyError):
            return False
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def load(self, image: str) -> None:
        """Give containerd an image of the store."""
        archive = images.export(image, self.folder / "image.tar")
        tools.run("ctr", "--address", self._socket, "-n", "k8s.io", "images", "import", archive)
        archive.unlink()

    def stop(self) -> None:
        """End the kubelet, which would start pods again, then what still runs, then the bridge."""
        self._plane.end(self._kubelet)
        for kind in ("tasks", "containers"):
            listed = subprocess.run(
                ["ctr", "--address", self._socket, "-n", "k8s.io", kind, "ls", "-q"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            for name in listed.split():
                more = ["--force"] if kind == "tasks" else []
                subprocess.run(
                    ["ctr", "--address", self._socket, "-n", "k8s.io", kind, "rm", *more, name],
                    capture_output=True,
                    check=False,
                )
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)

    def _containerd(self) -> str:
        return f"""
version = 2
root = "{self.folder}/root"
state = "{self.folder}/state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
