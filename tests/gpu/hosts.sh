#!/bin/sh
# Two hosts on a machine with two GPUs: a network namespace, a host name, an agent and a GPU each, NCCL over sockets between
# them, and a link that gets slow. As root, without a network, in under 500 s:
#     sh tests/gpu/hosts.sh WHEELHOUSE OUT 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# Eight healthy minutes, in under 580 s: HOSTS_TIMEOUT=575 sh tests/gpu/hosts.sh WHEELHOUSE OUT health
# WHEELHOUSE and PYTHON: as for session.sh; `unshare` and `nsenter` are util-linux. OUT gets hosts.json, rows.xz and logs.tgz.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" --no-deps "$1"/*.whl
shift 2

timeout "${HOSTS_TIMEOUT:-495}" python "$here/hosts.py" "$out" "$@"
code=$?
(cd "$out" && tar czf logs.tgz ./*.log && rm -f ./*.log)
rm -rf "$work"
exit $code
