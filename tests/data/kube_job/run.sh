#!/bin/sh
# A pod of the job, which goes on until the file $END is there: a Python process with CUPTI, and beside it in the first
# pod the ranks of a C program with NCCL, again and again. Both print how much they had to be recorded of.
DRUMLINE_COLLECT__POLICY=always python3 /job/train.py "$END" & python=$!
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
    rounds=0
    until [ -e "$END" ]; do
        begin=$(($(date +%s) * 1000 + 2000)) ranks=
        for rank in 0 1; do
            DRUMLINE_JOB=c-job RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 BEGIN_MS=$begin \
                /job/fake-nccl "$NCCL_PROFILER_PLUGIN" 5 job & ranks="$ranks $!"
        done
        for rank in $ranks; do wait "$rank" || exit 1; done
        rounds=$((rounds + 1))
    done
    echo "{\"rounds\": $rounds}"
fi
wait $python
