-- The newest version of rows that replace each other, under the name an analyst would guess.
CREATE OR REPLACE VIEW {database}.processes AS SELECT * FROM {database}.processes_versions FINAL;

CREATE OR REPLACE VIEW {database}.kernel_frequency AS SELECT * FROM {database}.kernel_frequency_versions FINAL;

CREATE OR REPLACE VIEW {database}.memcpy_bandwidth AS SELECT *, direction, source, target FROM {database}.memcpy_bandwidth_versions FINAL;

CREATE OR REPLACE VIEW {database}.lateness AS SELECT * FROM {database}.lateness_versions FINAL;

CREATE OR REPLACE VIEW {database}.stragglers AS SELECT * FROM {database}.stragglers_versions FINAL;

-- A row a run: when it ran, on what, and what is stored of it.
CREATE OR REPLACE VIEW {database}.jobs AS
SELECT
    job,
    run,
    minIf(time_min, has_time) AS started,
    maxIf(time_max, has_time) AS ended,
    uniqExactIf(rank, rank >= 0) AS ranks,
    uniqExactIf(host, host != '') AS hosts,
    sumIf(rows, topic = 'gpu.kernel.v1') AS kernels,
    sumIf(rows, topic = 'gpu.memcpy.v1') AS memcpys,
    sumIf(rows, topic = 'gpu.collective.v1') AS collectives,
    sumIf(rows, topic = 'gpu.step.v1') AS steps,
    sum(dropped_before) AS dropped_rows,
    max(published) AS last_published
FROM (
    SELECT *, verdict = 'stored' AND time_min > toDateTime64(0, 9, 'UTC') AND topic IN ('gpu.kernel.v1', 'gpu.step.v1') AS has_time
    FROM {database}.ledger
    WHERE verdict IN ('stored', 'empty') AND job != ''
)
GROUP BY job, run;
