-- Collectives and steps come from CUPTI, or from NCCL's profiler interface alone. Rows from before
-- this migration are CUPTI's.
ALTER TABLE {database}.collectives ADD COLUMN IF NOT EXISTS
    source LowCardinality(String) DEFAULT 'cupti' COMMENT 'what measured the rows: cupti, or nccl (NCCL\'s profiler interface, without other kernels)' CODEC(ZSTD(1))
    AFTER communicator;
ALTER TABLE {database}.steps ADD COLUMN IF NOT EXISTS
    source LowCardinality(String) DEFAULT 'cupti' COMMENT 'what measured the rows: cupti, or nccl (NCCL\'s profiler interface, without kernels and copies)' CODEC(ZSTD(1))
    AFTER steps_from;
