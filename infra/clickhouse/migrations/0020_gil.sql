-- Waiting of a main thread for Python's GIL: the detail python_lock of a late host.
ALTER TABLE {database}.host_samples ADD COLUMN IF NOT EXISTS
    main_gil_ns Nullable(Int64) COMMENT 'time in which the main thread waited for Python\'s GIL, which another thread had, from 20 polls a second; ns, NULL = unknown' CODEC(T64, ZSTD(1))
    AFTER host_memory_pressure_ns;

ALTER TABLE {database}.stragglers_versions COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers, no_past, few_steps_compared, other_source, stalled, silent, quarantine';
ALTER TABLE {database}.stragglers COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers, no_past, few_steps_compared, other_source, stalled, silent, quarantine';
