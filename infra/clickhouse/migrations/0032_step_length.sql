-- Two lengths of a step: that of its code on the host, which runs ahead, and that on the GPU, which is the step's.
ALTER TABLE {database}.steps COMMENT COLUMN
    duration_ns 'length of the step on the host, which runs ahead of the GPU; ns. The length of the step is gpu_duration_ns';
ALTER TABLE {database}.steps COMMENT COLUMN
    gpu_duration_ns 'length of the budget interval, on the GPU: the length of the step; ns, 0 = not known. compute + copy + comm_exposed + idle add up to it';
ALTER TABLE {database}.steps COMMENT COLUMN
    end_time 'end of its code on the host';
