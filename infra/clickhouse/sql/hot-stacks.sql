-- Where was a named rank's Python, and its peer's not?
-- theme: Stragglers
-- try: --job demo
-- The agent samples a rank that a verdict names (host_stall, or a job that stands still), and a healthy peer, for 2 s. `finding` python_lock: the main thread waited for the GIL, `gil_holder` had it.
-- @rank = -1: the rank that the verdict names; -1 = all of them
SELECT run, rank, verdict, sampled, position, thread, round(100 * culprit_share) AS culprit_percent, round(100 * peer_share) AS peer_percent, at, finding, gil_holder
FROM hot_stacks
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND ({rank:Int32} < 0 OR rank = {rank:Int32}) AND sampled >= {since:DateTime64(3, 'UTC')} AND sampled < {until:DateTime64(3, 'UTC')}
ORDER BY sampled DESC, rank, position
LIMIT {limit:UInt32}
