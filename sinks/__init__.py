"""Kafka to ClickHouse, exactly once: ranges, intents, ledger, dead letters, audit."""
