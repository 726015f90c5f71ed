"""Exit codes of all `drumline` commands. docs/reference/exit-codes.md explains them; one number has one meaning."""

from __future__ import annotations

#: Done; or a program that was stopped by SIGTERM.
OK = 0
#: A check found something wrong, or the command failed: a server does not answer, or rejects the request.
FAILED = 1
#: Wrong usage, a wrong setting, or an input that cannot be used.
BAD_INPUT = 2
#: `drumline sink`: Kafka no longer has records that are not stored.
RECORDS_LOST = 4
#: `drumline sink`: ClickHouse rejects the password, a grant, a table or a statement.
CLICKHOUSE_REJECTED = 5
#: `drumline sink`, `stream`, `agent`: another process has the same instance name or spool.
INSTANCE_IN_USE = 6
#: `drumline sink`, `stream`: Kafka or the schema registry rejects the certificate, the password, or an operation.
ACCESS_DENIED = 7
#: `drumline agent --until-empty`: everything is in Kafka, but not in the archive.
NOT_ARCHIVED = 8
#: `drumline grafana diff`, `generate --check`: there are differences.
DIFFERENT = 9
#: `drumline audit`: Kafka or ClickHouse does not answer, so nothing is known. `drumline check --pairs`: a host did
#: not, a pair was not measured, or a link is slow, of which either end may be at fault.
UNDECIDED = 10
#: `drumline run`: the command cannot be executed.
CANNOT_EXECUTE = 126
#: `drumline run`: there is no such command.
NOT_FOUND = 127
#: Ctrl-C.
INTERRUPTED = 130  # glossary: the standard name of 128 + SIGINT
