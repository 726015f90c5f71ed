#!/bin/sh
# Samples of one real GPU while it idles, multiplies and copies, in under six minutes, without a network:
#     sh tests/gpu/machine.sh WHEELHOUSE OUT      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE: drumline's dependencies for that Python and nvidia-ml-py. OUT gets machine.json.gz, the recording that
# tests/producers/nvml/test_recording.py reads. The last lines are the figures.
set -u
wheels=$1 out=$2 python=${PYTHON:-python3} here=$(dirname "$0")
work=$(mktemp -d) || exit 1
mkdir -p "$out"
# PyTorch may live in a virtual environment itself, whose packages another one sees by a .pth file only.
"$python" -m venv --without-pip --system-site-packages "$work/venv" &&
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$work/pytorch.pth" &&
    mv "$work/pytorch.pth" "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" &&
    "$python" -m pip --python "$work/venv/bin/python" install --quiet --no-index --no-deps --find-links "$wheels" "$wheels"/*.whl ||
    exit 1
PYTHONPATH=.typing timeout 330 "$work/venv/bin/python" "$here/machine.py" "$out"
code=$?
rm -rf "$work"
exit $code
