#!/bin/sh
# What only a machine with a GPU or two can show of drumline's samples, in four minutes, without a network:
#     sh tests/gpu/machine.sh WHEELHOUSE OUT [PART...]     from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE: drumline, its dependencies and nvidia-ml-py for that Python. Parts, all by default, in this order:
#   check    `drumline check` on idle GPUs
#   record   samples of one GPU under known loads (machine.py): machine.json.gz, which tests/producers/nvml/test_recording.py reads
#   beside   the agent's CPU at eight GPUs, a refused check, and a job's step time beside the agent (machine_beside.py)
#   agent    of `beside` only the agent's CPU
# MACHINE_SECONDS: time for all (240); `beside` uses what is left of it. OUT gets at most seven files.
set -u
begun=$(date +%s)
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2
[ $# -gt 0 ] || set -- check record beside
export DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9 NCCL_NVLS_ENABLE=0 PYTHONFAULTHANDLER=1
code=0
for part in "$@"; do
    left=$((${MACHINE_SECONDS:-240} - $(date +%s) + begun))
    echo "== $part, $left s left"
    case $part in
    check)
        timeout 60 drumline check --python "$work/venv/bin/python"
        echo "exit code $?"
        timeout 60 drumline check --json --no-load > "$out/check.json"
        ;;
    record) timeout 130 python "$here/machine.py" "$out" 2> "$out/record.err" || code=1 ;;
    agent) timeout 100 python "$here/machine_beside.py" "$out" 0 2> "$out/beside.err" || code=1 ;;
    beside) timeout $((left > 60 ? left + 40 : 100)) python "$here/machine_beside.py" "$out" "$((left > 60 ? left : 60))" 2> "$out/beside.err" || code=1 ;;
    esac
done
tail -n 20 "$out"/*.err
rm -rf "$work"
exit $code
