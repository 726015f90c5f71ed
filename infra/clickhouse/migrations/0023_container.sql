-- The container of a process, beside its pod.
ALTER TABLE {database}.processes_versions ADD COLUMN IF NOT EXISTS
    k8s_container LowCardinality(String) COMMENT 'Kubernetes container' CODEC(ZSTD(1)) AFTER k8s_pod;

CREATE OR REPLACE VIEW {database}.processes
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    local_rank Int32 COMMENT 'rank on its host',
    world_size Int32 COMMENT 'ranks of the job, as the launcher states',
    pid Int32 COMMENT 'process id on its host',
    start DateTime64(9, 'UTC') COMMENT 'start of the process',
    gpu_index Int32 COMMENT 'index of the GPU on its host',
    gpu_model LowCardinality(String) COMMENT 'as NVML names it',
    k8s_namespace LowCardinality(String) COMMENT 'Kubernetes namespace',
    k8s_pod LowCardinality(String) COMMENT 'Kubernetes pod',
    k8s_container LowCardinality(String) COMMENT 'Kubernetes container',
    slurm_job LowCardinality(String) COMMENT 'Slurm job id',
    source LowCardinality(String) COMMENT 'what published it: replay, agent (itself), cupti or nccl (a training process, and what records it)',
    labels Map(String, String) COMMENT 'free labels',
    versions Map(String, String) COMMENT 'versions of driver, CUPTI, NCCL, framework, drumline',
    policy LowCardinality(String) COMMENT 'what is collected at the moment, and why: \'on: always\', \'off: duty 0.2s/10s\'',
    collector Map(String, String) COMMENT 'what collecting cost so far (records, bytes, CPU seconds) and what it could not do, as text',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.processes_versions FINAL
COMMENT 'who a process is';
