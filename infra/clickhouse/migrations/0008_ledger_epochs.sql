-- A stream worker that was halted may publish results after another worker has its partition. The epoch rises with every
-- worker of a source; a result with a lower epoch than an earlier one of the same source is fenced: no rows.
ALTER TABLE {database}.ledger ADD COLUMN IF NOT EXISTS
    source LowCardinality(String) COMMENT 'of a result: the changelog partition of the stream worker that published it' AFTER content;
ALTER TABLE {database}.ledger ADD COLUMN IF NOT EXISTS
    epoch Int64 COMMENT 'of a result: rises with every worker that takes over the source; 0 = not known' AFTER source;
ALTER TABLE {database}.ledger MODIFY COLUMN
    disposition COMMENT 'stored, empty, duplicate (stored already from another offset), fenced (by a worker that had lost its partition), dead_letter';
