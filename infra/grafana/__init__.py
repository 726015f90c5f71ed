"""Grafana over ClickHouse: dashboards and alert rules in Python, from which `generated/` is written."""
