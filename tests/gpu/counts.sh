#!/bin/sh
# Measures what policy `counts` costs, whether its counts are right, and what a profiler beside it loses, in under seven minutes on one
# GPU or two, without a network:
#     sh tests/gpu/counts.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets counts.json and the errors of the jobs (errors.tgz). Parts and settings: counts.py.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

NCCL_NVLS_ENABLE=0 timeout -k 5 "${COUNTS_TIMEOUT:-418}" python "$here/counts.py" "$out" "$@"
code=$?
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
