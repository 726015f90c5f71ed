-- The power limit of each GPU: a lower one on some hosts makes their ranks late.
ALTER TABLE {database}.device_samples ADD COLUMN IF NOT EXISTS power_limit_mw Nullable(Int64) CODEC(T64, ZSTD(1)) AFTER fp16_active;
ALTER TABLE {database}.devices_per_minute
    ADD COLUMN IF NOT EXISTS min_power_limit_mw SimpleAggregateFunction(min, Nullable(Int64)) CODEC(ZSTD(1)) AFTER lost;
ALTER TABLE {database}.devices_per_minute_from_samples MODIFY QUERY
{device_rollup};
