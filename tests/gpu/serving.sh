#!/bin/sh
# Measures the recording of inference engines on one or two GPUs, in nine minutes, without a network:
#     sh tests/gpu/serving.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log     from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh; that Python has transformers too. OUT gets serving.json, errors.tgz and spools. Parts: serving.py. Wheels of fastapi and uvicorn too, for serve.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

NCCL_NVLS_ENABLE=0 timeout "${SERVING_TIMEOUT:-540}" python "$here/serving.py" "$out" "$@"
code=$?
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
