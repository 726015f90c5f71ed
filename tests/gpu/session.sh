#!/bin/sh
# One look at everything that only a GPU can show, in less than ten minutes, without a network:
#     sh tests/gpu/session.sh WHEELHOUSE OUT        from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE: `pip wheel --wheel-dir WHEELHOUSE '.[gpu]'`, made with the same version of Python (docs/offline.md). OUT gets
# doctor.json, the job's and the agent's output, counts.jsonl, spool.tar.gz and overhead.json. Then, where Kafka is:
#     drumline agent --spool SPOOL --until-empty     and the verdicts should name the ranks of tests/gpu/job.py
# A GPU machine has not run this script yet.
set -u
wheels=$1 out=$2 python=${PYTHON:-python3} here=$(dirname "$0")
work=$(mktemp -d) || exit 1
mkdir -p "$out"
export DRUMLINE_SPOOL__ROOT="$work/spool" DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9

"$python" -m venv --system-site-packages "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-index --find-links "$wheels" 'drumline[gpu]' || exit 1
PATH="$work/venv/bin:$PATH"

echo "== doctor (only Kafka may fail)"
drumline doctor --python "$work/venv/bin/python" --json | tee "$out/doctor.json"

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
echo "== DDP on $gpus GPUs, an agent beside it that reaches for Kafka in vain"
drumline agent > "$out/agent.log" 2>&1 &
agent=$!
timeout 150 drumline run --job faults -- python -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
    "$here/job.py" 800 > "$out/job.log" 2>&1
echo "the job's exit code: $?"
sleep 3
kill "$agent" && wait "$agent"
echo "the agent's exit code: $?"
python "$here/counted.py" "$DRUMLINE_SPOOL__ROOT" | tee "$out/counts.jsonl"
tar czf "$out/spool.tar.gz" -C "$work" spool

echo "== overhead, launch-bound, eight processes a mode"
timeout 330 drumline bench overhead --rounds 8 --seconds 3 --mode cupti --mode drumline --workload launch_bound \
    --json > "$out/overhead.json"
echo "exit code $?"
rm -rf "$work"
