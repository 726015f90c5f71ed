-- A launch has at least no block, and the dimensions y and z of a grid at most 65,535 (CUDA C++ Programming Guide, "Technical
-- Specifications per Compute Capability"). Records may hold any number of 32 bits: the product of those would wrap.
ALTER TABLE {database}.kernels MODIFY COLUMN
    blocks UInt64 ALIAS toUInt64(greatest(grid_x, 0)) * toUInt64(greatest(least(grid_y, 65535), 0)) * toUInt64(greatest(least(grid_z, 65535), 0))
    COMMENT 'blocks in the grid; 0 where a size is negative';
ALTER TABLE {database}.kernels MODIFY COLUMN
    threads_per_block UInt64 ALIAS toUInt64(greatest(block_x, 0)) * toUInt64(greatest(least(block_y, 65535), 0)) * toUInt64(greatest(least(block_z, 65535), 0))
    COMMENT 'threads in a block; 0 where a size is negative';
