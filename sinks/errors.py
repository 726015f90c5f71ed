"""Exceptions of the sink: which of them end it, and which it retries."""

from __future__ import annotations


class LostRecords(RuntimeError):
    """Kafka removed records before they were stored (retention). The sink does not skip them silently."""


class KafkaTrouble(RuntimeError):
    """A commit or question that failed and may succeed later, or by another member."""


class TopicReplaced(RuntimeError):
    """A topic was deleted and created anew while we read it; what was collected is worth nothing."""


class Fenced(RuntimeError):
    """Another sink runs under this one's static instance name, or this one's client challenged itself (membership.py);
    the client is out."""


class Astray(RuntimeError):
    """A client of ours that will never find a broker again; a new one may."""
