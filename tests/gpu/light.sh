#!/bin/sh
# What only two GPUs can show of the light tier, in under nine minutes, without a network:
#     sh tests/gpu/light.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets light.json and the errors of the jobs (errors.tgz). Parts and settings: light.py.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9 timeout 60 drumline doctor --python "$work/venv/bin/python" > "$out/doctor.txt" 2>&1 &
doctor=$!
NCCL_NVLS_ENABLE=0 timeout 530 python "$here/light.py" "$out" "$@"
code=$?
wait "$doctor"
cat "$out/doctor.txt"
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
