"""Grafana over ClickHouse: dashboards and alert rules in Python, which `drumline grafana write` writes as files."""
