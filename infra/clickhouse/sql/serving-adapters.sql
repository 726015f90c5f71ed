-- Which adapter makes iterations longer?
-- theme: Serving
-- try: --job served
-- chart: us_per_token by name
-- Iterations with tokens of an adapter beside those without, of the same phase and about as many tokens. `ratio`: what a token of it takes, by a token without it; `extra_percent`: share of these iterations' time beyond.
SELECT run, if(adapter = '', '(none)', adapter) AS name, iterations, tokens, round(ns_per_token / 1e3, 2) AS us_per_token, round(ratio, 2) AS to_others, round(100 * extra_share, 1) AS extra_percent
FROM adapter_costs
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
ORDER BY us_per_token DESC, name
LIMIT {limit:UInt32}
