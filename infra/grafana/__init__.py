"""Grafana over ClickHouse: dashboards and alert rules as Python; `dashboards/` and `provisioning/` are made of them."""
