"""The contracts: Avro schemas with packed columns, wire format, registry, topics. Imports nothing of ours."""
