"""The contracts between the programs: Avro schemas with packed columns, wire format, registry, topics, record keys."""
