-- What did the health checks of hosts find?
-- theme: Devices
-- The newest result of each check of each GPU. `drumline check --publish` and the agent's start (DRUMLINE_AGENT__CHECK) make them.
-- @host = : this host; empty = all of them
SELECT host, gpu_index AS gpu, name, argMax(c.state, time) AS result, argMax(c.text, time) AS finding, argMax(c.measured, time) AS value, argMax(c.expected, time) AS at_least, max(time) AS checked
FROM checks AS c
WHERE ({host:String} = '' OR host = {host:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
GROUP BY host, gpu_index, name
ORDER BY result = 'fail' DESC, result = 'warn' DESC, host, gpu, name
LIMIT {limit:UInt32}
