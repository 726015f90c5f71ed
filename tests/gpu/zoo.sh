#!/bin/sh
# Records jobs of many shapes on two GPUs, by CUPTI and by NCCL's plugin in one run, without a network:
#     sh tests/gpu/zoo.sh WHEELHOUSE OUT [SHAPE...] 2>&1 | tee OUT.log     from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets recordings.tar.*, zoo.json and agent.log; zoo.py says what ZOO_* mean.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

NCCL_NVLS_ENABLE=0 timeout "${ZOO_TIMEOUT:-560}" python "$here/zoo.py" "$out" "$@"
code=$?
tail -c 200000 "$out/agent.log" > "$out/agent.tail" && mv "$out/agent.tail" "$out/agent.log"
rm -rf "$work"
exit $code
