-- How are the links of the hosts: speed, traffic, errors, and what is wrong?
-- theme: Devices
-- try: --host node-a
-- Links of InfiniBand, RoCE and Ethernet, from sysfs. `wrong` is the newest reason; errors are those of symbols, received and sent packets, and integrity.
-- @job = : hosts of this job; empty = all hosts
-- @host = : this host; empty = all of them
SELECT host, device, any(n.link) AS kind, argMax(n.state, n.time) AS now, round(argMax(n.speed_mbps, n.time) / 1e3, 1) AS gbits, round(max(n.expected_mbps) / 1e3, 1) AS expected_gbits,
    argMaxIf(n.reason, n.time, n.reason != '') AS wrong, round(sum(n.rx_bytes) * 8 / sumIf(interval_ns, n.rx_bytes IS NOT NULL), 3) AS received_gbits,
    round(sum(n.tx_bytes) * 8 / sumIf(interval_ns, n.tx_bytes IS NOT NULL), 3) AS sent_gbits,
    sum(ifNull(n.symbol_errors, 0) + ifNull(n.rx_errors, 0) + ifNull(n.tx_errors, 0) + ifNull(n.integrity_errors, 0)) AS errors, sum(ifNull(n.rx_discards, 0) + ifNull(n.tx_discards, 0)) AS discards,
    sum(ifNull(n.link_downs, 0)) AS downs, sum(ifNull(n.recoveries, 0)) AS trained_again, sum(ifNull(n.timeouts, 0)) AS timeouts
FROM network_samples AS n
WHERE ({job:String} = '' OR host IN (SELECT host FROM processes WHERE job = {job:String})) AND ({host:String} = '' OR host = {host:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
GROUP BY host, device
ORDER BY wrong != '' DESC, downs DESC, errors DESC, host, device
LIMIT {limit:UInt32}
