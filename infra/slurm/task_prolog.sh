#!/bin/sh
# Slurm's TaskProlog: every task is recorded as below `drumline run`, and users type nothing. It runs as the user, for the
# batch script and again for each task of its steps; a repetition adds nothing. A user turns it off with
# DRUMLINE_ATTACH=0. What fails here never fails the task: it runs unrecorded.
#
# Copy to /etc/drumline on all nodes; slurm.conf: TaskProlog=/etc/drumline/task_prolog.sh
# /opt/drumline: a Python environment with drumline[gpu], at the same path on all nodes.
# /etc/drumline/jobs.env: settings of recorded jobs, such as DRUMLINE_SPOOL__ROOT=/dev/shm/drumline. Optional, but for
# DRUMLINE_SPOOL__AGENT_USER=drumline where the agent is not root: else `drumline policy` does not reach jobs.
# In a subshell: the shell ends at a syntax error in that file.
(
    if [ -r /etc/drumline/jobs.env ]; then
        set -a
        . /etc/drumline/jobs.env > /dev/null
        set +a
        sed -n 's/^\(DRUMLINE_[A-Za-z0-9_]*=\)/export \1/p' /etc/drumline/jobs.env
    fi
    timeout 10 /opt/drumline/bin/python -I -m drumline.producers.slurm
) 2> /dev/null
exit 0
