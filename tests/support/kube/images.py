"""Images built without a registry: a base of Debian's packages, drumline's own Dockerfile on it, and a job's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.kube import tools

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "infra" / "image" / "Dockerfile"
STORE = tools.CACHE / "containers"
DRUMLINE, JOB, PAUSE = "localhost/drumline:test", "localhost/job:test", "localhost/pause:test"
BARE = "localhost/bare:test"
#: A process that waits for the end of its pod, and takes over orphans.
PAUSE_C = """\
#include <signal.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  signal(SIGCHLD, SIG_IGN);
  for (;;) pause();
}
"""
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def storage(program: str) -> list[str]:
    """Return a program with the options of a store of our own."""
    return [program, "--root", str(STORE / "store"), "--runroot", str(STORE / "run"), "--storage-driver", "overlay"]


def environment() -> dict[str, str]:
    """Return the variables of buildah and podman: layers by chroot, which needs the fewest rights."""
    STORE.mkdir(parents=True, exist_ok=True)
    configuration = STORE / "containers.conf"
    configuration.write_text(CONTAINERS_CONF)
    return {**os.environ, "BUILDAH_ISOLATION": "chroot", "CONTAINERS_CONF": str(configuration)}


def buildah(*arguments: str | Path, stdin: str | None = None) -> str:
    """Run buildah; return what it prints."""
    return _run([*storage("buildah"), *map(str, arguments)], stdin)


def podman(*arguments: str) -> str:
    """Run podman; return what it prints."""
    return _run([*storage("podman"), *arguments], None)


def logs(container: str) -> str:
    """Return what a container has printed, on both streams."""
    command = [*storage("podman"), "logs", container]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), check=True
    ).stdout


def _run(command: list[str], stdin: str | None, check: bool = True) -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=environment(), timeout=3_000, check=False
    )
    assert not check or done.returncode == 0, (
        f"{command}: exit {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
    )
    return done.stdout


def has(image: str) -> bool:
    """Return whether the store has an image."""
    return bool(_run([*storage("buildah"), "images", "--quiet", image], None, check=False).strip())


def base() -> str:
    """Make what the Dockerfile begins from, of Debian's packages, under the name that it asks a registry for.

    It has a C compiler too, so that building needs pip's index alone.
    """
    [name] = set(re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    image = f"docker.io/library/{name}"
    if not has(image):
        archive = STORE / "base.tar"
        environment()
        packages = "python3,python3-pip,python3-dev,python3-venv,gcc,libc6-dev,ca-certificates,binutils"
        tools.run("mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", archive)
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, archive, "/")
        # As the official image: python is there, and pip may install.
        buildah("run", container, "--", "sh", "-c",
                "ln -sf python3 /usr/bin/python; rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED")  # fmt: skip
        buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        buildah("commit", "--quiet", container, image)
        buildah("rm", container)
        archive.unlink()
    return image


def build() -> None:
    """Build drumline's image by its Dockerfile."""
    base()
    certificates = (
        []
        if not Path("/etc/ssl/certs").exists()
        else ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro", "--env", "PIP_CERT=/etc/ssl/certs/ca-certificates.crt"]
    )
    buildah(
        "build", "--pull-never", "--network", "host", *certificates, "--layers", "--format", "docker",
        "--ignorefile", DOCKERFILE.with_suffix(".dockerignore"), "-f", DOCKERFILE, "-t", DRUMLINE, ROOT,
    )  # fmt: skip


def build_job(folder: Path) -> None:
    """Build an image of a training job from a folder, without drumline: fake NCCL and fake CUPTI, and numpy."""
    buildah("build", "--pull-never", "--network", "host", "--format", "docker", "-f", "-", "-t", JOB, folder, stdin=(
        f"FROM {base()}\nCOPY . /job\nRUN pip install --no-cache-dir --no-index --find-links /job/wheels numpy\n"
    ))  # fmt: skip


def build_bare() -> None:
    """Build an image with a shell and no library: neither Python nor a C library of its own."""
    container = buildah("from", "scratch").strip()
    buildah("copy", "--quiet", container, "/bin/busybox", "/bin/sh")
    buildah("commit", "--quiet", container, BARE)
    buildah("rm", container)


def build_pause(folder: Path) -> None:
    """Build the image that holds a pod's namespaces."""
    (folder / "pause.c").write_text(PAUSE_C)
    tools.run("cc", "-Os", "-static", "-o", folder / "pause", folder / "pause.c")
    container = buildah("from", "scratch").strip()
    buildah("copy", "--quiet", container, folder / "pause", "/pause")
    buildah("config", "--entrypoint", '["/pause"]', container)
    buildah("commit", "--quiet", container, PAUSE)
    buildah("rm", container)


def export(image: str, path: Path) -> Path:
    """Write an image into a file that containerd imports under its name."""
    path.unlink(missing_ok=True)
    buildah("push", "--quiet", image, f"docker-archive:{path}:{image}")
    return path


def clean() -> None:
    """Remove the store."""
    shutil.rmtree(STORE, ignore_errors=True)
