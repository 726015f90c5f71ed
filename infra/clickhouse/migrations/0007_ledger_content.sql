-- A repetition is a duplicate only if its content is the one that is stored: whoever knows a process id may publish its
-- sequences. Rows from before this migration have 0: any content of that sequence counts as theirs.
ALTER TABLE {database}.ledger ADD COLUMN IF NOT EXISTS
    content UInt64 COMMENT 'hash of the record without its schema id; 0 = not known: no rows, or stored before this column'
    AFTER bytes;
