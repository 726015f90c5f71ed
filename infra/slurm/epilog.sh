#!/bin/sh
# Slurm's Epilog: waits until the node's agent has published what the job left in the spool, for 20 s at most. Needed only
# where nodes are switched off or wiped after a job: elsewhere the agent publishes it later. It changes nothing, so it
# may run again.
#
# Copy to /etc/drumline on all nodes; slurm.conf: Epilog=/etc/drumline/epilog.sh
root=/dev/shm/drumline
if [ -r /etc/drumline/jobs.env ]; then
    configured=$(sed -n 's/^DRUMLINE_SPOOL__ROOT=//p' /etc/drumline/jobs.env | tail -n 1)
    root=${configured:-$root}
fi
left=20
# As root over users' files: `-r` follows no link, `-D skip` passes by a FIFO, which would block for ever.
while [ "$left" -gt 0 ] &&
    timeout 5 grep -rqs -D skip --include=identity.json "\"slurm_job\": *\"$SLURM_JOB_ID\"" "$root"; do
    sleep 1
    left=$((left - 1))
done
exit 0
