#!/bin/sh
# Makes files of other tools on two GPUs, with known faults, for `drumline verdict`:
#     sh tests/gpu/foreign.sh INSPECTOR OUT 2>&1 | tee OUT.log        from the repository's root; PYTHON names a Python with PyTorch
# INSPECTOR: plugins/profiler/inspector of NCCL's sources; "" leaves its logs out. OUT gets foreign.tar, a folder a case.
set -u
here=$(dirname "$0") inspector=$1 out=$2 python=${PYTHON:-python3}
export NCCL_NVLS_ENABLE=0 TORCH_NCCL_TRACE_BUFFER_SIZE=200 TORCH_FR_BUFFER_SIZE=200 TORCH_NCCL_ENABLE_MONITORING=0 OMP_NUM_THREADS=2
port=29500

run() { # CASE PROCESSES ARGUMENTS...: one job, at most 70 s
    name=$1 count=$2 port=$((port + 1))
    shift 2
    mkdir -p "$out/$name"
    what=$1
    shift
    timeout 70 "$python" -m torch.distributed.run --nproc-per-node "$count" --master-port $port "$here/foreign_job.py" \
        "$what" "$out/$name" "$@" > "$out/$name/log" 2>&1
    echo "$name: $? $(date +%T) $(ls "$out/$name" | tr '\n' ' ')"
    tail -c 1500 "$out/$name/log" > "$out/$name/log.tail" && rm "$out/$name/log"
}

"$python" -c 'import torch; print(torch.__version__, torch.cuda.nccl.version(), torch.cuda.device_count())'
build=$(mktemp -d)
[ -z "$inspector" ] || { cp -r "$inspector"/. "$build" && make -C "$build" -j8 > "$out/inspector-build.log" 2>&1; } &
(
    export CUDA_VISIBLE_DEVICES=
    port=29700
    for scenario in not_called wrong_operation order receive_without_send chain; do run "gloo-$scenario" 4 hang "$scenario"; done
) &
for scenario in not_called wrong_operation wrong_size order receive_without_send ended gpu_busy; do
    run "hang-$scenario" 2 hang "$scenario"
done
wait
for fault in none host gpu; do run "kineto-$fault" 2 train "$fault" 24; done
if [ -n "$inspector" ]; then
    for fault in host gpu; do
        export NCCL_PROFILER_PLUGIN="$build/libnccl-profiler-inspector.so" NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_VERBOSE=1
        export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500 NCCL_INSPECTOR_DUMP_DIR="$out/inspector-$fault/logs"
        run "inspector-$fault" 2 plain "$fault" 240
        xz -9 "$out/inspector-$fault"/logs/* 2> /dev/null
    done
fi
cd "$out" && tar -cf foreign.tar -- * && find . -mindepth 1 -maxdepth 1 ! -name foreign.tar -exec rm -rf {} +
