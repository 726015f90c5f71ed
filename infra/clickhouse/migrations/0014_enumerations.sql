-- Comments name every value of an enumeration (a test compares them with the programs' own lists). A view has comments
-- of its own. Each comment begins as the contract does.
ALTER TABLE {database}.stragglers_versions COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention, cpu_throttled, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers, no_past, few_steps_compared, other_source, stalled, silent, quarantine';
ALTER TABLE {database}.stragglers COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention, cpu_throttled, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers, no_past, few_steps_compared, other_source, stalled, silent, quarantine';

ALTER TABLE {database}.collectives COMMENT COLUMN
    operation 'operation: AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Send, Recv, SendRecv, AllToAll, Gather, Scatter; empty = unknown';
ALTER TABLE {database}.lateness_versions COMMENT COLUMN
    worst_operation 'its operation: AllReduce, AllGather, ReduceScatter, AllToAll, Send, Recv, SendRecv, Broadcast, Scatter; empty = none';
ALTER TABLE {database}.lateness COMMENT COLUMN
    worst_operation 'its operation: AllReduce, AllGather, ReduceScatter, AllToAll, Send, Recv, SendRecv, Broadcast, Scatter; empty = none';

ALTER TABLE {database}.memcpy_bandwidth_versions COMMENT COLUMN
    kind 'copy kind as in gpu.memcpy.v1: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset';
ALTER TABLE {database}.memcpy_bandwidth_versions COMMENT COLUMN
    src_kind 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none (memset)';
ALTER TABLE {database}.memcpy_bandwidth_versions COMMENT COLUMN
    dst_kind 'target memory kind, same numbers';
ALTER TABLE {database}.memcpy_bandwidth COMMENT COLUMN
    kind 'copy kind as in gpu.memcpy.v1: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset';
ALTER TABLE {database}.memcpy_bandwidth COMMENT COLUMN
    src_kind 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none (memset)';
ALTER TABLE {database}.memcpy_bandwidth COMMENT COLUMN
    dst_kind 'target memory kind, same numbers';

ALTER TABLE {database}.device_samples COMMENT COLUMN
    throttle_reasons 'NVML clock event reasons, bits from 0x1: idle, application clocks, power cap, HW slowdown, sync boost, SW thermal, HW thermal, HW power brake, display clocks; NULL = not supported';

ALTER TABLE {database}.processes_versions COMMENT COLUMN
    source 'what published it: replay, agent (itself), cupti or nccl (a training process, and what records it)';
ALTER TABLE {database}.processes COMMENT COLUMN
    source 'what published it: replay, agent (itself), cupti or nccl (a training process, and what records it)';

ALTER TABLE {database}.hangs_versions COMMENT COLUMN
    operation 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own';
ALTER TABLE {database}.hangs COMMENT COLUMN
    operation 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own';
ALTER TABLE {database}.hangs_now COMMENT COLUMN
    operation 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own';
ALTER TABLE {database}.hangs_versions COMMENT COLUMN
    datatype 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown';
ALTER TABLE {database}.hangs COMMENT COLUMN
    datatype 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown';
ALTER TABLE {database}.hangs_now COMMENT COLUMN
    datatype 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown';
