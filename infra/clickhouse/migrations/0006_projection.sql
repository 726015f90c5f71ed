-- Dashboards mostly ask for all ranks together: beside each part of the rollup lies the same without the rank, and the
-- server reads that where a question allows it (1/16 of the rows with 16 ranks, 1/1000 with 1000). It is built again when
-- parts merge, so it cannot differ from them.
ALTER TABLE {database}.kernels_per_minute MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild';

ALTER TABLE {database}.kernels_per_minute ADD PROJECTION IF NOT EXISTS all_ranks
(
    SELECT
        job,
        run,
        minute,
        name,
        sum(launches),
        sum(gpu_ns),
        max(max_ns),
        sum(graph_launches),
        max(registers),
        max(shared_bytes),
        quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations),
        quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks),
        quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)
    GROUP BY job, run, minute, name
);

ALTER TABLE {database}.kernels_per_minute MATERIALIZE PROJECTION all_ranks;
