-- Which link is slow: how fast did each rank send to each other one over the network, and how fast should it be?
-- theme: Stragglers
-- try: --job demo
-- chart: newest_gb_s, usual_gb_s by from_rank, to_rank
-- A flow's rate is that of the end that saw less time on the network: a late sender or receiver leaves the other's short. `usual_gb_s`: median of its intervals; `peers_gb_s`: that of its communicator's flows that cross hosts, or do not, likewise. Rows without both ends have no rate. `communicator` is tcp: the kernel's rate of the ranks' TCP connections, alone where these carried half or more of what NCCL recorded. `wrong` and `errors`: of the links of both ends; of all links of a host where the end's own is not known (`drumline sql network`).
-- @seconds = 10: length of an interval
WITH ends AS (
    SELECT communicator, direction = 'send' AS sends, if(sends, comm_rank, peer) AS sender, if(sends, peer, comm_rank) AS receiver,
        toStartOfInterval(start, toIntervalSecond({seconds:UInt32})) AS at, any(rank) AS of_rank, any(host) AS of_host, arrayStringConcat(arraySort(groupUniqArrayIf(nic, nic != '')), ' ') AS nics,
        toFloat64(sum(bytes)) AS size, size / greatest(sum(busy_ns), 1) AS rate
    FROM transfers
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND local = ''
    GROUP BY communicator, sends, sender, receiver, at
), connections AS (
    SELECT local, remote, toStartOfInterval(start, toIntervalSecond({seconds:UInt32})) AS at, any(rank) AS of_rank, any(host) AS of_host, any(nic) AS of_nic,
        toFloat64(sumIf(bytes, direction = 'send')) AS size, sumIf(network_ns, direction = 'send') AS busy_ns, ifNotFinite(medianIf(delivery_rate, delivery_rate > 0), 0) / 1e9 AS delivered
    FROM transfers
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND local != ''
    GROUP BY local, remote, at
), pairs AS (
    SELECT a.of_rank AS from_rank, a.of_host AS from_host, arrayStringConcat(arraySort(groupUniqArrayIf(a.of_nic, a.of_nic != '')), ' ') AS from_nic,
        b.of_rank AS to_rank, b.of_host AS to_host, arrayStringConcat(arraySort(groupUniqArrayIf(b.of_nic, b.of_nic != '')), ' ') AS to_nic, a.at AS at, sum(a.size) AS sent,
        greatest(sent / greatest(sum(a.size * a.busy_ns) / sent, 1), sum(a.delivered)) AS gb_s
    FROM connections AS a INNER JOIN connections AS b ON b.local = a.remote AND b.remote = a.local AND b.at = a.at
    WHERE a.size >= 1048576 AND a.of_rank != b.of_rank
    GROUP BY from_rank, from_host, to_rank, to_host, at
), recorded AS (
    SELECT communicator, sender, receiver, at, anyIf(of_rank, sends) AS from_rank, anyIf(of_host, sends) AS from_host, anyIf(nics, sends) AS from_nic,
        anyIf(of_rank, NOT sends) AS to_rank, anyIf(of_host, NOT sends) AS to_host, anyIf(nics, NOT sends) AS to_nic, anyIf(size, sends) AS sent, max(rate) AS gb_s
    FROM ends GROUP BY communicator, sender, receiver, at
    HAVING count() = 2 AND sent >= 1048576
), flows AS (
    SELECT * FROM recorded
    WHERE (from_rank, to_rank, at) NOT IN (
        SELECT p.from_rank, p.to_rank, p.at
        FROM pairs AS p INNER JOIN (SELECT from_rank, to_rank, at, sum(recorded.sent) AS size FROM recorded GROUP BY from_rank, to_rank, at) AS r
            ON r.from_rank = p.from_rank AND r.to_rank = p.to_rank AND r.at = p.at
        WHERE p.sent >= 0.5 * r.size)
    UNION ALL
    SELECT 'tcp', from_rank, to_rank, at, from_rank, from_host, from_nic, to_rank, to_host, to_nic, sent, gb_s FROM pairs
), links AS (
    SELECT host, device, argMaxIf(n.reason, n.time, n.reason != '') AS wrong, sum(ifNull(n.symbol_errors, 0) + ifNull(n.rx_errors, 0) + ifNull(n.tx_errors, 0) + ifNull(n.integrity_errors, 0) + ifNull(n.link_downs, 0)) AS errors
    FROM network_samples AS n
    WHERE host IN (SELECT host FROM transfers WHERE job = {job:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
    GROUP BY GROUPING SETS ((host, device), (host))
)
SELECT f.from_rank AS from_rank, f.from_host AS from_host, f.from_nic AS from_nic, f.to_rank AS to_rank, f.to_host AS to_host, f.to_nic AS to_nic, round(f.newest, 3) AS newest_gb_s,
    round(f.lowest, 3) AS lowest_gb_s, round(f.usual, 3) AS usual_gb_s, round(median(f.usual) OVER (PARTITION BY f.communicator, f.from_host = f.to_host), 3) AS peers_gb_s,
    round(f.sent / 1e9, 3) AS recorded_gb, f.communicator AS communicator, arrayStringConcat(arrayFilter(text -> text != '', [a.wrong, b.wrong]), ', ') AS wrong, a.errors + b.errors AS errors
FROM (
    SELECT communicator, any(from_rank) AS from_rank, from_host, any(from_nic) AS from_nic, any(to_rank) AS to_rank, to_host, any(to_nic) AS to_nic,
        argMax(gb_s, at) AS newest, min(gb_s) AS lowest, median(gb_s) AS usual, sum(flows.sent) AS sent,
        if((from_host, from_nic) IN (SELECT host, device FROM links), from_nic, '') AS from_device, if((to_host, to_nic) IN (SELECT host, device FROM links), to_nic, '') AS to_device
    FROM flows GROUP BY communicator, sender, receiver, from_host, to_host
) AS f
LEFT ANY JOIN links AS a ON a.host = f.from_host AND a.device = f.from_device
LEFT ANY JOIN links AS b ON b.host = f.to_host AND b.device = f.to_device
ORDER BY f.newest / greatest(f.usual, peers_gb_s), from_rank, to_rank
LIMIT {limit:UInt32}
