#!/bin/sh
# What only two GPUs can show of the light tier, in under nine minutes, without a network:
#     sh tests/gpu/light.sh WHEELHOUSE OUT [PART...] 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE and PYTHON: as for session.sh. OUT gets light.json and the errors of the jobs (errors.tgz). Parts and settings: light.py.
set -u
wheels=$1 out=$2 python=${PYTHON:-python3} here=$(dirname "$0")
shift 2
work=$(mktemp -d) || exit 1
mkdir -p "$out"

# PyTorch may live in a virtual environment itself, whose packages another one sees by a .pth file only.
"$python" -m venv --without-pip --system-site-packages "$work/venv" &&
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$work/pytorch.pth" &&
    mv "$work/pytorch.pth" "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" &&
    "$python" -m pip --python "$work/venv/bin/python" install --quiet --no-index --no-deps --find-links "$wheels" "$wheels"/*.whl ||
    exit 1
PATH="$work/venv/bin:$PATH"

DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9 timeout 60 drumline doctor --python "$work/venv/bin/python" > "$out/doctor.txt" 2>&1 &
doctor=$!
NCCL_NVLS_ENABLE=0 timeout 530 python "$here/light.py" "$out" "$@"
code=$?
wait "$doctor"
cat "$out/doctor.txt"
(cd "$out" && tar czf errors.tgz ./*.err && rm -f ./*.err)
rm -rf "$work"
exit $code
