-- Who is rank N: host, GPU, process, versions?
-- theme: Jobs and ranks
-- try: --job demo
SELECT run, rank, host, gpu_index, gpu_model, pid, source, versions['torch'] AS torch, versions['nccl'] AS nccl, policy
FROM processes
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
ORDER BY run, rank
LIMIT {limit:UInt32}
