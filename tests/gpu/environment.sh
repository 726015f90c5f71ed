# Sourced by machine.sh, light.sh and session.sh, which are called with a wheelhouse and a folder for results.
# prepare WHEELHOUSE OUT PIP-ARGUMENT...: makes OUT, and in $work an environment with these packages beside PyTorch's. It
# is first on PATH from then on. PYTHON: the Python that has PyTorch.
prepare() {
    wheels=$1 out=$2 python=${PYTHON:-python3}
    shift 2
    work=$(mktemp -d) || exit 1
    mkdir -p "$out"
    # PyTorch may live in a virtual environment itself, whose packages another one sees by a .pth file only.
    "$python" -m venv --without-pip --system-site-packages "$work/venv" &&
        "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$work/pytorch.pth" &&
        mv "$work/pytorch.pth" "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" &&
        "$python" -m pip --python "$work/venv/bin/python" install --quiet --no-index --find-links "$wheels" "$@" || exit 1
    PATH="$work/venv/bin:$PATH"
}
