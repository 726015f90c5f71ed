#!/bin/sh
# The whole platform beside a real job on one machine with two GPUs, in six minutes, without a network:
#     STACK=DRUMLINE sh tests/gpu/whole.sh WHEELHOUSE OUT [HOW] 2>&1 | tee OUT.log     from the repository's root; PYTHON names a Python with PyTorch
# STACK: the `drumline` command of an environment with all extras, Java and Kafka's jars. WHEELHOUSE and PYTHON: as for
# session.sh. HOW: the job of causes_job.py, ddp by default. OUT gets whole.json (whole.py) and errors.tgz.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
how=${3:-ddp}
prepare "$1" "$2" --no-deps "$1"/*.whl

NCCL_NVLS_ENABLE=0 timeout 400 python "$here/whole.py" "$out" "$how"
code=$?
(cd "$out" && tar czf errors.tgz ./*.err ./*.log && rm -f ./*.err ./*.log)
rm -rf "$work"
exit $code
