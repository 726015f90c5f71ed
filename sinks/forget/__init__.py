"""Deletion of one job's data: rows, ledger, keys and records in Kafka, and state of stream workers."""
