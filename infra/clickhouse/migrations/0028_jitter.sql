-- The cause jitter: ranks that are late by turns.
ALTER TABLE {database}.stragglers_versions COMMENT COLUMN
    cause 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, jitter, unknown, insufficient_data';
ALTER TABLE {database}.stragglers COMMENT COLUMN
    cause 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, jitter, unknown, insufficient_data';
