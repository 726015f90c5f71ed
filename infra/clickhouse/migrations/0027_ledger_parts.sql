-- An agent joins the batches of its host in one Kafka record, of which each part has a row of its own here.
ALTER TABLE {database}.ledger ADD COLUMN IF NOT EXISTS
    part UInt8 COMMENT 'number of the batch in a record that holds several, from 1; 0 = the record is one batch' CODEC(T64, ZSTD(1)) AFTER offset;
