#!/bin/sh
# Hostile jobs on one GPU: called by session.sh, with its PATH. rough.sh GPU HOW...
# Prints, of each: the job's exit code, what it launched, and the stored and lost rows of its spool.
set -u
here=$(dirname "$0") gpu=$1
shift

# The decoder of this job, among those of others.
decoder() {
    for pid in $(pgrep -f drumline.producers.decoder.main); do
        grep -qsz "DRUMLINE_SPOOL__ROOT=$work/" "/proc/$pid/environ" && echo "$pid" && return
    done
}

for how in "$@"; do
    work=$(mktemp -d) under="" within="" job=$how seconds=9
    export DRUMLINE_SPOOL__ROOT="$work/spool"
    [ "$how" = spawn ] || export CUDA_VISIBLE_DEVICES="$gpu"
    case $how in
    disk_full) # smaller than what the job publishes
        mkdir "$work/spool" && mount -t tmpfs -o size=1m none "$work/spool"
        job=end ;;
    spool_is_a_file) : > "$work/spool" && job=end ;;
    spool_gone) job=end ;;
    decoder_killed | decoder_hangs) job=end ;;
    job_stopped) job=end seconds=34 ;;
    unsubscribed) seconds=27 ;; # from CUPTI 13.4 on 10 s of steps are skipped, then kernels come again
    flipped) job=end seconds=20 ;;
    profiler_flipped) job=profiler seconds=27 ;;
    nsight_compute) job=end under="ncu --target-processes all -c 1" ;;
    open_mpi) job=end within="mpirun --allow-run-as-root --oversubscribe -n 2" ;;
    accelerate) job=end within="accelerate launch --num_processes 1 --no_python" ;;
    esac
    program=${under:-$within}
    program=${program%% *}
    if [ "$program" ] && ! command -v "$program" > /dev/null; then
        echo "-- $how: no $program here"
        continue
    fi
    # shellcheck disable=SC2086
    $under drumline run --policy always --job "$how" -- $within python "$here/hostile_job.py" "$job" "$seconds" > "$work/out" 2> "$work/err" &
    job=$!
    case $how in
    decoder_killed) sleep 7 && kill -9 "$(decoder)" ;;
    decoder_hangs) sleep 7 && stopped=$(decoder) && kill -STOP "$stopped" ;;
    spool_gone) sleep 7 && rm -rf "$work/spool" ;;
    flipped | profiler_flipped) # the policy, while it launches, and before, under and after PyTorch's profiler: nearly
        # all published steps are good, to the end
        sleep 7 && for _ in 1 2 3 4 5; do
            kill -0 "$job" 2> /dev/null || break
            echo off > "$work/spool/policy" && sleep 2.5 && rm "$work/spool/policy" && sleep 2.5
        done ;;
    job_stopped) # longer than the decoder is waited for
        sleep 7 && training=$(pgrep -f "hostile_job.py end" | while read -r pid; do
            grep -qsz "DRUMLINE_SPOOL__ROOT=$work/" "/proc/$pid/environ" && echo "$pid"
        done)
        # shellcheck disable=SC2086
        kill -STOP $training "$(decoder)" && sleep 20 && kill -CONT $training "$(decoder)" ;;
    esac
    wait "$job"
    code=$?
    [ "$how" = decoder_hangs ] && kill -CONT "$stopped"
    sleep 3
    {
        echo "-- $how: exit code $code"
        grep launched "$work/out"
        grep -v "^==PROF==" "$work/err" | tail -2
        [ -d "$work/spool" ] && python "$here/count_spool.py" "$work/spool" erfinv
    } > "$work/report" 2>&1
    cat "$work/report"
    umount "$work/spool" 2> /dev/null
    rm -rf "$work"
done
