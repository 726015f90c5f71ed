"""Every cause and detail of a verdict: its name, what it means, and what to do (docs/design/stragglers.md, 5 and 6).

Analysis, comments of columns, alerts, dashboards, report, web page and docs take names and texts from here. The order
is part of the alert rules: a query gives the number of an entry, and the message has its text.
"""

from __future__ import annotations

from drumline.infra.guidance.entry import DRUMLINE, HOST, NETWORK, SAMPLES, STEPS, Entry

#: The cause of a rank that holds nobody up, or of a job as it was: there is nothing to do.
OK = "ok"
#: Causes of one rank.
HOST_STALL, SLOW_COMPUTE, SLOW_GPU, SLOW_COPY, UNKNOWN = (
    "host_stall", "slow_compute", "slow_gpu", "slow_copy", "unknown",
)  # fmt: skip
#: Causes of the job as a whole.
SLOW_LINK, CHANGED_JOB, JITTER = "slow_link", "changed_job", "jitter"
#: Cause of a row without a verdict.
INSUFFICIENT_DATA = "insufficient_data"

CAUSES: tuple[Entry, ...] = (
    Entry(
        HOST_STALL, "",
        "its host gave the GPU nothing to do while the others waited",
        "Compare the rank's main thread with a healthy peer's: `drumline sql hot-stacks --job JOB` (or `py-spy dump "
        "--pid PID`), CPU and run queue "
        "(`pidstat -u -w -t -p PID 1`).",
        "Move the slow host work out of the step, or to all ranks at once. If only this host is slow, drain it.",
    ),
    Entry(
        HOST_STALL, "data_loader",
        "it waited for its input data",
        "Compare `load_ns` in its steps with its peers'; look at CPU and disk of its loader's workers.",
        "More workers or prefetching, faster storage, or less work a sample.",
        known_from=STEPS,
    ),
    Entry(
        HOST_STALL, "garbage_collection",
        "its Python collected garbage while the others waited",
        "Compare `gc_ns` in its steps with its peers'.",
        "Call `gc.collect()` at the same step on all ranks and `gc.disable()` between; `gc.freeze()` helps.",
        known_from=STEPS,
    ),
    Entry(
        HOST_STALL, "checkpoint",
        "it saved a checkpoint while the others waited",
        "Compare `checkpoint_ns` in its steps with its peers'. One rank that saves for all is normal, if rare.",
        "Save asynchronously or in shards (`torch.distributed.checkpoint`), or less often, or to faster storage.",
        known_from=STEPS,
    ),
    Entry(
        HOST_STALL, "synchronisation",
        "its host waited for the GPU before it launched more work",
        "Compare `sync_ns` in its steps with its peers': `torch.cuda.synchronize()`, `.item()`. Only CUPTI has it.",
        "Take the call out of the step, or make it rare: log every n-th step.",
    ),
    Entry(
        HOST_STALL, "cpu_contention",
        "its threads could run and had no CPU",
        "Look at `run_queue_ns` in the evidence; `main_wait_ns`, `most_wait_ns` in `host_samples`; `pidstat -t`.",
        "Move what else runs on these CPUs, give ranks CPUs of their own, or set fewer threads (`OMP_NUM_THREADS`).",
        HOST,
        known_from=SAMPLES,
    ),
    Entry(
        HOST_STALL, "cpu_throttled",
        "its cgroup had used up its CPU quota",
        "Look at `throttled_ns` in the evidence and in `host_samples`; `cpu.stat` of its cgroup. It is -1 where the "
        "agent does not see that cgroup: its log has the reason.",
        "Raise the limit of the container (Kubernetes: CPU limit), or take it away.",
        HOST,
        known_from=SAMPLES,
    ),
    Entry(
        HOST_STALL, "python_lock",
        "its main thread waited for Python's GIL, which another thread held",
        "Look at `gil_ns` in the evidence; `drumline sql hot-stacks --job JOB` has the thread and line that held it.",
        "Move that work into a process of its own, or into code that gives the GIL back (NumPy, PyTorch).",
        known_from=SAMPLES,
    ),
    Entry(
        HOST_STALL, "page_faults",
        "it waited for memory that was read from disk",
        "Look at `major_faults` and `disk_ns` in the evidence; memory pressure in `host_samples`; `vmstat 1`.",
        "Give it more memory, or map fewer files; look who else uses the host's memory.",
        known_from=SAMPLES,
    ),
    Entry(
        HOST_STALL, "disk",
        "its main thread waited for a disk",
        "Look at `disk_ns` in the evidence; `iostat -x 1` on its host.",
        "Take the access out of the training's thread, or use faster storage.",
        HOST,
        known_from=SAMPLES,
    ),
    Entry(
        SLOW_COMPUTE, "",
        "its kernels took longer than the other ranks'",
        "Compare the rank's top kernels with a peer's on the dashboard Rank.",
        "Balance the work between ranks; if the work is the same, look at the GPU.",
    ),
    Entry(
        SLOW_COMPUTE, "more_work",
        "it had more to compute than the other ranks",
        "Compare batch size, sequence lengths and tokens of the rank with a peer's; the evidence has how many times "
        "their kernels and blocks it ran.",
        "Balance the work: sort or pack sequences, or move layers between pipeline stages.",
    ),
    Entry(
        SLOW_COMPUTE, "same_work",
        "its GPU took longer for the same work",
        "Compare clocks, temperature and throttle reasons of the GPU with a peer's on the dashboard Devices.",
        "If it is always the same GPU, drain the host and run its diagnosis.",
        HOST,
    ),
    Entry(
        SLOW_COMPUTE, "other_work",
        "it ran other kernels than the other ranks, as many or nearly",
        "Compare kernels by name on the dashboard Rank: which ones does only this rank have?",
        "Make shapes equal on all ranks, or accept it where the job is unequal by design.",
    ),
    Entry(
        SLOW_COMPUTE, "shared_gpu",
        "other processes used its GPU",
        "Run `nvidia-smi` on the host: which other processes hold this GPU?",
        "End or move the other process; give jobs whole GPUs.",
        HOST,
        known_from=STEPS,
    ),
    Entry(
        SLOW_COMPUTE, "throttled",
        "its GPU ran at a lower clock",
        "Look at clocks, power, temperature and throttle reasons of the GPU on the dashboard Devices.",
        "Heat or power: check cooling and supply of the host, and drain it until they are well. A power cap: set the "
        "same one on all hosts.",
        HOST,
        known_from=STEPS,
    ),
    Entry(
        SLOW_COMPUTE, "slow_part",
        "its GPU was slower at the same work and the same clock",
        "Run the same job on another GPU: does the fault stay with the GPU? Look for remapped rows and PCIe errors.",
        "Drain the host, run its diagnosis, and have the GPU replaced if that repeats it.",
        HOST,
    ),
    Entry(
        SLOW_GPU, "",
        "its GPU was busy for longer than the others'; recording its kernels shows with what",
        "Record kernels of this rank and of a peer for a few minutes: `drumline run --policy always`, or the policy "
        "file on its host.",
        "Act on what the next verdict names: more work, a shared GPU, a low clock or a slow copy.",
        HOST,
    ),
    Entry(
        SLOW_COPY, "",
        "its copies between host and GPU took longer",
        "Compare bandwidth of its copies with a peer's on the dashboard Memcpy, and the PCIe link "
        "(`nvidia-smi -q -d PCIE`).",
        "A narrow or slow link: drain the host. More bytes than its peers: copy less, or overlap copies with compute.",
        HOST,
    ),
    Entry(
        SLOW_COPY, "pageable",
        "it copied from or to pageable host memory; pinned memory is faster",
        "The dashboard Memcpy shows pageable copies of the rank.",
        "Use pinned memory (`pin_memory=True`) and `non_blocking=True`.",
        known_from=STEPS,
    ),
    Entry(
        SLOW_LINK, "",
        "collectives took longer than before, although no rank came late",
        "Look at speed, state and errors of its hosts' links: `drumline sql network --job JOB`, and `nvidia-smi "
        "nvlink -e` for NVLink.",
        "Ask the network's owner to check these ports; move the job off the link if it stays slow.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "above_own_history",
        "the same collectives took longer than in the healthy windows before, although no rank came late",
        "Look at speed, state and errors of its hosts' links: `drumline sql network --job JOB`, and `nvidia-smi "
        "nvlink -e` for NVLink.",
        "Ask the network's owner to check these ports; move the job off the link if it stays slow.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "one_flow",
        "what one rank sent another took longer on the network than before, or than others take; both are named",
        "Look at speed, width and errors of the ports of both hosts: `drumline sql which-link --job JOB`, `drumline "
        "sql network --job JOB`.",
        "Ask the network's owner to check the path between the two ports; move one of the hosts if it stays slow.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "one_nic",
        "all transfers of one network device took longer; its host's others did not",
        "Look at its speed, width and errors: `drumline sql network --job JOB`, `ibstat` or `ethtool`.",
        "Have port, cable and PCIe slot of the device checked; drain the host if it stays slow.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "one_pair",
        "transfers between two hosts took longer, of several ranks or in both directions; others did not",
        "Look at speed, width and errors of both hosts' ports: `drumline sql which-link --job JOB`, `drumline sql "
        "network --job JOB`.",
        "Ask the network's owner to check the path between the two hosts; move one of them if it stays slow.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "one_host",
        "transfers of one host with all its peers took longer; those between others did not",
        "Look at the host's ports (`drumline sql network --job JOB`), at CPU of NCCL's proxy threads, and who else "
        "uses its network.",
        "Drain the host, and have its network checked.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "several_flows",
        "several transfers took longer, which have neither a host nor a network device in common",
        "List them: `drumline sql which-link --job JOB`. Do they share a switch?",
        "Ask the network's owner for what these paths have in common.",
        NETWORK,
    ),
    Entry(
        SLOW_LINK, "all_flows",
        "nearly all transfers of the job took longer",
        "Does another job use the same network? Look at congestion: `drumline sql network --job JOB`.",
        "Ask the network's owner; jobs that start at the same time may share a switch.",
        NETWORK,
    ),
    Entry(
        CHANGED_JOB, "",
        "steps became longer on all ranks together; the job may have changed by design",
        "Did the job itself change: batch size, sequence length, evaluation, a new phase?",
        "None if it was meant. Else compare kernels before and after on the dashboard Job.",
    ),
    Entry(
        CHANGED_JOB, "more_work",
        "all ranks have more to compute than before",
        "Compare kernels, batch size and sequence lengths with those before on the dashboard Job.",
        "None if it was meant. Else find the change of the job that did it.",
    ),
    Entry(
        CHANGED_JOB, "compute",
        "steps became longer on all ranks by the same kernels",
        "Compare clocks and kernels with those before on the dashboards Devices and Job.",
        "None if it was meant. Else find the change of the job that did it.",
    ),
    Entry(
        CHANGED_JOB, "copy",
        "steps became longer on all ranks by copies",
        "Compare copies with those before on the dashboard Memcpy.",
        "None if it was meant. Else find the change of the job that did it.",
    ),
    Entry(
        CHANGED_JOB, "idle",
        "steps became longer on all ranks by waiting for their hosts",
        "Did evaluation, logging or loading change on all ranks? `drumline sql hot-stacks --job JOB`.",
        "None if it was meant. Else find the change of the job that did it.",
    ),
    Entry(
        CHANGED_JOB, "communication",
        "steps became longer on all ranks by communication that nothing hides",
        "Compare sizes and times of collectives with those before: `drumline sql bus-bandwidth --job JOB`.",
        "None if it was meant. Else find the change of the job that did it.",
    ),
    Entry(
        CHANGED_JOB, "cpu_contention",
        "collectives took longer on paths that have nothing in common, while processes of most ranks waited for a CPU",
        "Look at `cpu_wait_share` in the evidence; `main_wait_ns`, `most_wait_ns` in `host_samples`; `vmstat 1`.",
        "Move what else runs on the hosts' CPUs, or set fewer threads. If it stays when they are free, look at the "
        "network: `drumline sql which-link --job JOB`.",
        known_from=SAMPLES,
    ),
    Entry(
        JITTER, "",
        "ranks are late by turns, none of them consistently",
        "The evidence has the ranks that take turns. Look at their idle time on the dashboard Rank: short launches, "
        "other processes, garbage collection.",
        "None at once. If it costs much: larger batches or CUDA graphs, fewer processes on the hosts' CPUs.",
    ),
    Entry(
        UNKNOWN, "",
        "no single part of its time explains it",
        "Look at its steps beside a peer's: compute, copies, idle and communication on the dashboard Rank.",
        "Record for longer; if it stays, report the job with `drumline report`.",
        DRUMLINE,
    ),
    Entry(
        UNKNOWN, "mixed",
        "several parts of its time explain it together, none of them most of it",
        "The evidence lists idle, copies and compute beside its peers'.",
        "Begin with the largest part; the next windows may separate them.",
    ),
    Entry(
        INSUFFICIENT_DATA, "",
        "too few ranks or steps could be compared for a verdict",
        "Is every rank recorded? `drumline sql collecting --job JOB` and `drumline doctor` on its hosts show it.",
        "Record all ranks of the job with the same policy.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "no_peers",
        "the job has one rank, which has no peers",
        "The job's own steps are compared with its earlier ones: see the row of the whole job.",
        "None.",
    ),
    Entry(
        INSUFFICIENT_DATA, "no_past",
        "it is compared with its past, which is too short",
        "Stages of a pipeline without replicas, and windows of one step, need three healthy windows first.",
        "None: wait for them.",
    ),
    Entry(
        INSUFFICIENT_DATA, "ranks_missing",
        "too many of its ranks have never reported a step",
        "Which hosts are missing? `drumline sql collecting --job JOB` lists the ranks that are recorded.",
        "Start drumline in all processes of the job, and an agent on each of its hosts.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "few_steps_recorded",
        "most steps of a window were not recorded, or their rows were lost",
        "Look at policy and dropped rows: `drumline sql collecting --job JOB`.",
        "Record every step: policy `light`, `auto` or `always`, and no profiler of samples.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "no_collectives",
        "its ranks met in no collective of NCCL",
        "Is NCCL recorded (`drumline doctor` on its hosts), or does the job communicate by another library? Where "
        "kernels were recorded, `drumline sql other-communication --job JOB` shows it.",
        "Have NCCL recorded (policy `light`, `auto` or `always`). Communication of other libraries cannot be compared.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "unlike_collectives",
        "the collectives of its ranks do not match: they call different ones or only send, or rows were lost",
        "Compare their numbers: `drumline sql collectives-by-rank --job JOB`; dropped rows: `drumline sql collecting "
        "--job JOB`.",
        "Mark the same steps on all ranks with `drumline.step(n)`. Ranks that differ by design cannot be compared.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "few_steps_compared",
        "its ranks meet in collectives in too few steps of a window",
        "Does each step call a collective? With gradient accumulation only each n-th forward pass does.",
        "Mark steps where gradients are averaged, not each forward pass: `drumline.step(n)`.",
    ),
    Entry(
        INSUFFICIENT_DATA, "other_source",
        "its rows come from another source than most ranks'",
        "Which ranks are recorded by NCCL's plugin, and which by CUPTI? `drumline sql collecting --job JOB`.",
        "Give all ranks the same policy.",
        DRUMLINE,
    ),
    Entry(
        INSUFFICIENT_DATA, "stalled",
        "the steps of the whole job stopped",
        "Is it an evaluation or a checkpoint? If not: which rank did not call the collective that the others wait in?",
        "If it hangs, take stacks of all ranks (`py-spy dump --pid PID`), then restart the job.",
    ),
    Entry(
        INSUFFICIENT_DATA, "silent",
        "its steps stopped while other ranks' go on",
        "Does its process live? Does the agent of its host publish (`/readyz`, its log)?",
        "Restart the agent, or look for the process's end in the job's log.",
        HOST,
    ),
    Entry(
        INSUFFICIENT_DATA, "quarantine",
        "the stream worker dropped the job's state after an error, or as it was too large",
        "Read `evidence_json` of its row: it names stage and error. The worker's log has the traceback.",
        "None: the job is taken up again after 10 minutes. Report the error.",
        DRUMLINE,
    ),
)  # fmt: skip

#: Reasons of a job without a window of steps: no row of a verdict has them, but view `job_coverage` does.
WITHOUT_WINDOWS: tuple[Entry, ...] = (
    Entry(
        INSUFFICIENT_DATA, "no_steps",
        "no steps of it are known: it marks none, and its calls of NCCL repeat no pattern of steps",
        "Are its ranks recorded (`drumline sql collecting --job JOB`)? Optimizers of PyTorch mark steps by themselves.",
        "Call `drumline.step(n)` at the begin of each step, or of each request that is served.",
    ),
    Entry(
        INSUFFICIENT_DATA, "no_verdict",
        "no stream worker has evaluated its steps",
        "Do the stream workers run, and without lag? `drumline status`, and the dashboard Health.",
        "Start them, or more of them.",
        DRUMLINE,
    ),
)  # fmt: skip

_BY_NAME = {(entry.cause, entry.detail): entry for entry in (*CAUSES, *WITHOUT_WINDOWS)}


#: All names of a row: (cause, detail).
NAMES = frozenset({(OK, ""), *((entry.cause, entry.detail) for entry in CAUSES)})


def details_known_from(source: str) -> frozenset[str]:
    """Return the details that the analysis knows from `source`: STEPS or SAMPLES."""
    return frozenset(entry.detail for entry in CAUSES if entry.known_from == source)


def guidance(cause: str, detail: str = "") -> Entry | None:
    """Return the entry of a detail, else that of its cause; None for `ok` and what is not known."""
    return _BY_NAME.get((cause, detail)) or _BY_NAME.get((cause, ""))
