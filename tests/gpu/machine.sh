#!/bin/sh
# Samples of one real GPU while it idles, multiplies and copies, in under six minutes, without a network:
#     sh tests/gpu/machine.sh WHEELHOUSE OUT      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE: drumline's dependencies for that Python and nvidia-ml-py. OUT gets machine.json.gz, the recording that
# tests/producers/nvml/test_recording.py reads. The last lines are the figures.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
PYTHONPATH=.typing timeout 330 python "$here/machine.py" "$out"
code=$?
rm -rf "$work"
exit $code
