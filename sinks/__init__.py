"""Write Kafka topics to ClickHouse, exactly once: ranges, intents, ledger, dead letters, audit."""
