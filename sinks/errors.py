"""Define the sink's exceptions and state which are fatal."""

from __future__ import annotations


class LostRecords(RuntimeError):
    """Fatal: Kafka removed records before they were stored (retention). The sink never skips them silently."""


class TransientKafkaError(RuntimeError):
    """Retry later: a commit or request failed and may succeed later, or from another member."""


class TopicReplaced(RuntimeError):
    """Start over: a topic was deleted and recreated while it was read; the records collected from it are discarded."""


class Fenced(RuntimeError):
    """The client is out: another sink runs under its static instance name, or it fenced itself (kafka/fencing.py)."""


class NoKnownBrokers(RuntimeError):
    """Re-create the client: it has lost every broker address and never reconnects."""
