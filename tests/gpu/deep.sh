#!/bin/sh
# What only a GPU or two can show of deep windows, in nine minutes, without a network:
#     sh tests/gpu/deep.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. Parts, all by default, in this order; each has its own time and its own file in OUT:
#   pc        CUPTI's PC sampling: which calls succeed, beside which records, what it shows and costs (deep_probe.py)
#   pcend     ways to end PC sampling beside a training loop, each in a process: which hang (deep_probe.py)
#   launches  a launch-bound DDP job before, in and after deep windows; launches, scopes and threads of its kernels (deep_launches.py)
#   switched  the recording of launches switched on and off beside threads that launch: does the process go on
#             (deep_switched.py)
#   hot       a Hugging Face job with a planted slow function; hot.tar.xz is its spool (deep_hot.py)
#   hook      jobs that only `drumline hook install` knows, and a change of their host's policy (deep_hot.py)
#   sass      SASS instruction metrics beside kernel records (deep_probe.py)
# OUT gets at most seven files.
set -u
begun=$(date +%s)
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2
[ $# -gt 0 ] || set -- pc pcend launches switched hot hook sass
export DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9 NCCL_NVLS_ENABLE=0 PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1 TMPDIR="${TMPDIR:-/dev/shm}"
DEEP_GPUS=$(DRUMLINE_ATTACH=0 python -c 'import torch; print(min(2, torch.cuda.device_count()))')
export DEEP_GPUS LIGHT_RANKS="$DEEP_GPUS"
code=0
# part NAME SECONDS COMMAND...: a part, which ends itself; it is killed only if it does not.
part() {
    name=$1 seconds=$2
    shift 2
    left=$((${DEEP_TOTAL:-525} - $(date +%s) + begun))
    [ "$left" -gt 15 ] || { echo "== $name: no time left"; return; }
    [ "$seconds" -lt "$left" ] || seconds=$((left - 5))
    echo "== $name, $seconds s of $left s left"
    DEEP_SECONDS=$seconds LIGHT_SECONDS=$seconds timeout -k 5 $((seconds + 10)) "$@" 2> "$out/$name.err" || { code=1; tail -n 20 "$out/$name.err"; }
}
for name in "$@"; do
    case $name in
    pc) part pc 130 python "$here/deep_probe.py" "$out" pc ;;
    pcend) part pcend 240 python "$here/deep_probe.py" "$out" pcend ;;
    sass) part sass 70 python "$here/deep_probe.py" "$out" sass ;;
    launches) part launches 190 python "$here/deep_launches.py" "$out" ;;
    switched) part switched 90 python "$here/deep_switched.py" "$out" ;;
    hot) part hot 90 python "$here/deep_hot.py" "$out" hot ;;
    hook) part hook 80 python "$here/deep_hot.py" "$out" hook ;;
    esac
done
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
