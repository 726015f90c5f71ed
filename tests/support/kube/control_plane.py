"""A Kubernetes control plane on loopback: etcd, API server, controllers and scheduler, as processes of the test."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.kube import tools

from drumline.infra.localstack.ephemeral import free_ports

ADMIN, NODE = "admin-token", "node-token"


class ControlPlane:
    """Starts the programs in `start`; `stop` ends all of them. `node`: name of the node that may join as itself."""

    def __init__(self, folder: Path, node: str = "node-a") -> None:
        self.folder, self.node = folder, node
        folder.mkdir(parents=True, exist_ok=True)
        self._client, self._peer, self._api, self._controllers, self._scheduler = free_ports(5)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._names: dict[int, str] = {}
        self.address = f"https://127.0.0.1:{self._api}"

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        key, public, users = self.folder / "sa.key", self.folder / "sa.pub", self.folder / "tokens.csv"
        tools.run("openssl", "genrsa", "-out", key, "2048")
        tools.run("openssl", "rsa", "-in", key, "-pubout", "-out", public)
        node = f'{NODE},system:node:{self.node},node,"system:nodes"\n'
        users.write_text(f"{ADMIN},admin,admin,system:masters\n{node}")
        etcd = f"http://127.0.0.1:{self._client}"
        peer = f"http://127.0.0.1:{self._peer}"
        self.spawn(
            "etcd", "/usr/bin/etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.spawn(
            "kube-apiserver", tools.program("kube-apiserver"), f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self._api}", f"--cert-dir={self.folder}/certs",
            "--service-cluster-ip-range=10.96.0.0/16", f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC", f"--token-auth-file={users}", "--allow-privileged=true",
            "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        self.config = self.kubeconfig("admin", ADMIN)
        self.wait(lambda: self.kubectl("get", "--raw", "/readyz", check=False).strip() == "ok", 120)
        common = [f"--kubeconfig={self.config}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        self.spawn(
            "kube-controller-manager", tools.program("kube-controller-manager"), *common,
            f"--secure-port={self._controllers}", f"--service-account-private-key-file={key}",
            # Nodes of a test without kubelets send no heartbeats.
            "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller",
        )  # fmt: skip
        self.spawn("kube-scheduler", tools.program("kube-scheduler"), *common, f"--secure-port={self._scheduler}")

    def spawn(self, name: str, *command: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process that `stop` ends; its log is in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **variables},
            )
        self.processes.append(process)
        self._names[process.pid] = name
        return process

    def kubeconfig(self, user: str, token: str) -> Path:
        """Write a configuration for a client with this token."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": self.address, "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
        }  # fmt: skip
        path.write_text(json.dumps(content))
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; stdout, or with check=False stdout and stderr of whatever happens."""
        return self._tool("kubectl", arguments, stdin, check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        """Run helm as the administrator."""
        return self._tool("helm", arguments, None, check)

    def _tool(self, name: str, arguments: tuple[str, ...], stdin: str | None, check: bool) -> str:
        tools.helm()
        variables = {"HOME": str(self.folder), "KUBECONFIG": str(self.config)}
        done = subprocess.run(
            [str(tools.BIN / name), *arguments], input=stdin, capture_output=True, text=True, timeout=400, check=False,
            env={**os.environ, **variables},
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{name} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *arguments: str) -> Any:
        """Return objects as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(item) for item in objects))

    def wait(self, condition: Callable[[], Any], most_s: float, state: str = "") -> Any:
        """Return the first result of `condition` that is true. A program that ended fails the test with its log."""
        until = time.monotonic() + most_s
        while not (result := condition()):
            for process in self.processes:
                if process.poll() is not None:
                    name = self._names[process.pid]
                    log = (self.folder / f"{name}.log").read_text()[-3000:]
                    raise AssertionError(f"{name} ended: {process.returncode}\n{log}")
            assert time.monotonic() < until, f"not within {most_s} s: {state}"
            time.sleep(0.3)
        return result

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End one process that `spawn` started."""
        self.processes.remove(process)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End all processes, the API server before etcd, and unmount what pods left below the folder."""
        for process in self.processes[::-1]:
            self.end(process)
        with Path("/proc/self/mounts").open() as mounts:
            below = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{self.folder}/")]
        for place in sorted(below, reverse=True):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
