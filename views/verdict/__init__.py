"""Verdicts on recorded jobs, from files alone: without Kafka, ClickHouse or a running job."""
