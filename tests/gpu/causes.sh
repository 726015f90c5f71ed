#!/bin/sh
# Records jobs of two GPUs with known faults, healthy spans between them, in nine minutes, without a network:
#     sh tests/gpu/causes.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log     from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets recordings.tar.* (causes.py), causes.json and errors.tgz.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

NCCL_NVLS_ENABLE=0 timeout 545 python "$here/causes.py" "$out" "$@"
code=$?
(cd "$out" && tar czf errors.tgz ./*.err ./*.log && rm -f ./*.err ./*.log)
rm -rf "$work"
exit $code
