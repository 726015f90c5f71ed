#!/bin/sh
# Measures what counting launches costs and whether the counts are right, in under eight minutes on two GPUs, without a network:
#     sh tests/gpu/counts.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets counts.json and the errors of the jobs (errors.tgz). Parts and settings: counts.py.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

NCCL_NVLS_ENABLE=0 timeout -k 5 475 python "$here/counts.py" "$out" "$@"
code=$?
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
