#!/bin/bash
# Users of the sinks, of people and of Grafana; run once by the image, when its data directory is new. Passwords go in as
# hashes, so that no log has them. `init` gives the users their roles. A new password later: ALTER USER.
set -euo pipefail
user() {
    local hash
    hash=$(printf %s "$2" | sha256sum | cut -d' ' -f1)
    clickhouse-client --user "$CLICKHOUSE_USER" --password "$CLICKHOUSE_PASSWORD" \
        --query "CREATE USER IF NOT EXISTS $1 IDENTIFIED WITH sha256_hash BY '$hash'"
}
user writer "$WRITER_PASSWORD"
user analyst "$ANALYST_PASSWORD"
user grafana "$GRAFANA_READER_PASSWORD"
