"""A job of three ranks of the fake NCCL, below one `drumline run`: `sh -c LAUNCHER PROGRAM host|gpu`."""

RANKS, LATE, STEPS, PER_STEP = 3, 1, 20, 2
#: Ranks of one job, below one `drumline run`; one of them is late by its host or its GPU.
LAUNCHER = f"""
begin=$(($(date +%s%3N) + 1000)) ranks=
for rank in {" ".join(map(str, range(RANKS)))}; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={RANKS} BEGIN_MS=$begin LATE=$([ $rank = {LATE} ] && echo $1) \\
        "$0" "$NCCL_PROFILER_PLUGIN" 5 job & ranks="$ranks $!"
done
for rank in $ranks; do wait $rank || exit 1; done
"""
