-- The attempts of each run, in order. Rows without an attempt are those of older workers, or of jobs in quarantine.
CREATE OR REPLACE VIEW {database}.attempts
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one job, under one name on all ranks and after restarts',
    attempt UInt32 COMMENT 'its number in the run: 1, 2, ...',
    attempts UInt32 COMMENT 'attempts of the run so far',
    attempt_start DateTime64(9, 'UTC') COMMENT 'start of its first process; names it in lateness, stragglers and hangs',
    next_start DateTime64(9, 'UTC') COMMENT 'start of the next one; 2262 = it is the newest',
    first_step Int64 COMMENT 'first step with a verdict; -1 = none',
    last_step Int64 COMMENT 'last step with a verdict; -1 = none'
)
AS SELECT
    job,
    run,
    number AS attempt,
    toUInt32(length(sorted)) AS attempts,
    one.1 AS attempt_start,
    if(number = length(sorted), toDateTime64('2262-01-01', 9, 'UTC'), sorted[number + 1].1) AS next_start,
    one.2 AS first_step,
    one.3 AS last_step
FROM (
    SELECT
        job,
        run,
        groupArray((begin, first, last, since, evaluation)) AS of_all,
        -- Another evaluation may name an attempt by another process, if its first one reported late: they start within a
        -- minute, and the newest evaluation's name counts.
        arrayFilter(
            x -> (toUnixTimestamp64Nano(x.1) > 0 OR length(of_all) = 1) AND NOT arrayExists(
                y -> y.5 != x.5 AND (y.4, y.5) > (x.4, x.5) AND abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < 60000000000, of_all),
            of_all
        ) AS named,
        arraySort(arrayMap(
            x -> (
                x.1,
                arrayMin(arrayMap(y -> y.2, arrayFilter(y -> y.2 >= 0 AND abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < if(y.5 = x.5, 1, 60000000000), of_all))),
                arrayMax(arrayMap(y -> y.3, arrayFilter(y -> abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < if(y.5 = x.5, 1, 60000000000), of_all)))
            ),
            named
        )) AS sorted
    FROM (
        SELECT
            job,
            run,
            attempt_start AS begin,
            evaluation,
            min(e.begun) AS since,
            groupBitmapMergeState(e.steps) AS evaluated,
            bitmapCardinality(evaluated) = 0 AS is_empty,
            if(is_empty, -1, toInt64(bitmapMin(evaluated))) AS first,
            if(is_empty, -1, toInt64(bitmapMax(evaluated))) AS last
        FROM {database}.evaluations AS e
        GROUP BY job, run, attempt_start, evaluation
    )
    GROUP BY job, run
)
ARRAY JOIN sorted AS one, arrayEnumerate(sorted) AS number
COMMENT 'the attempts of each run that have verdicts, in order: a job that restarts under one name is one run';
