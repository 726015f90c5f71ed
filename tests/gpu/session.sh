#!/bin/sh
# One pass over everything that only GPUs can show, in about ten minutes, without a network:
#     sh tests/gpu/session.sh WHEELHOUSE OUT 2>&1 | tee OUT.log        from the repository's root; PYTHON names a Python with PyTorch
# WHEELHOUSE: `pip wheel --wheel-dir WHEELHOUSE '.[gpu]'`, made with the same version of Python (docs/guide/deploy.md). OUT gets
# doctor.json, output of the jobs and the agents, counts-*.jsonl, spool-*.tar.gz, rough-*.log and overhead.json. Then, where
# Kafka is: `drumline agent --spool SPOOL --until-empty`, and the verdicts should name the ranks of tests/gpu/job.py.
set -u
here=$(dirname "$0")
. "$here/environment.sh"
prepare "$1" "$2" 'drumline[gpu]'
export DRUMLINE_KAFKA__BOOTSTRAP=127.0.0.1:9

echo "== doctor (only Kafka may fail)"
drumline doctor --python "$work/venv/bin/python" --json | tee "$out/doctor.json"

echo "== a thread that begins to use CUPTI while another makes NVTX calls: exit codes of 16 runs each (cold: 139 from CUPTI 13.2 on)"
cupti=$(python -c 'import torch; print(next(line.split()[-1] for line in open("/proc/self/maps") if "libcupti" in line))')
cc -o "$work/first_use" "$here/first_use.c" -I "$(dirname "$cupti")/../include" -ldl -lpthread &&
    for how in cold primed toggle; do
        codes=$(seq 16 | NVTX_INJECTION64_PATH="$cupti" xargs -P 8 -I{} sh -c "$work/first_use $how; echo \$?" 2> /dev/null)
        echo "$how: $(echo "$codes" | sort | uniq -c | xargs)"
    done

echo "== kernels after records were switched off and on beside launches, 24 runs each: all are recorded, or none (alone and, from CUPTI 13.4 on, last: some none)"
cc -o "$work/missing_kernels" "$here/missing_kernels.c" -ldl -lpthread &&
    for how in alone kept last late; do
        echo "$how: $(seq 24 | xargs -P 12 -I{} timeout 60 "$work/missing_kernels" "$cupti" "$how" | sort | uniq -c | xargs)"
    done

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
rounds=$((12 / gpus > 4 ? 4 : 12 / gpus))

# ddp NAME STEPS: a DDP job on all GPUs, an agent beside it that reaches for Kafka in vain.
ddp() {
    export DRUMLINE_SPOOL__ROOT="$work/$1"
    drumline agent > "$out/agent-$1.log" 2>&1 &
    agent=$!
    timeout 120 drumline run --policy always --job "$1" -- python -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
        "$here/job.py" "$2" > "$out/job-$1.log" 2>&1
    echo "the job's exit code: $?"
    sleep 3
    kill "$agent" && wait "$agent"
    echo "the agent's exit code: $?"
    python "$here/count_spool.py" "$DRUMLINE_SPOOL__ROOT" | tee "$out/counts-$1.jsonl"
    tar czf "$out/spool-$1.tar.gz" -C "$work" "$1"
}

echo "== DDP on $gpus GPUs with faults"
ddp faults 800

echo "== the same, and CUPTI runs out of buffers twice: few buffers, and decoders that hang for eight seconds"
(for _ in 1 2; do sleep 16; pkill -STOP -f drumline.producers.decoder.main; sleep 8; pkill -CONT -f drumline.producers.decoder.main; done) &
DRUMLINE_COLLECT__BUFFER_MB=4 ddp drops 1600
wait

echo "== what jobs survive, and a DDP job beside them on the same GPUs: kernels wait, hosts are far ahead"
(ddp crowd 500) > "$out/crowd.log" 2>&1 &
lane=0
for hows in "end raise kill found_first" "os_exit cuda_error fork disk_full" "profiler profiler_first job_stopped" \
    "spool_is_a_file decoder_killed decoder_hangs spool_gone" "nsight_compute open_mpi accelerate" \
    "end end end end end" "flipped unsubscribed" "profiler_flipped profiler_flipped" "profiler profiler profiler"; do
    # shellcheck disable=SC2086
    sh "$here/rough.sh" $((lane % gpus)) $hows > "$out/rough-$lane.log" 2>&1 &
    lane=$((lane + 1))
done
wait
sh "$here/rough.sh" 0 spawn > "$out/rough-$lane.log" 2>&1
cat "$out"/rough-*.log "$out/crowd.log"

echo "== overhead, launch-bound: $rounds processes a mode on each of $gpus GPUs"
timeout 330 drumline bench overhead --rounds "$rounds" --seconds 5 --mode cupti --mode drumline --mode paired \
    --workload launch_bound --gpus "$gpus" --json > "$out/overhead.json"
echo "exit code $?"
rm -rf "$work"
