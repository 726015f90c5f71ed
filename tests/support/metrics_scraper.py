"""Read what a program serves on its loopback port, over HTTP as a scraper does."""

import contextlib
import time
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from support.wait_limit import WAIT_S

from drumline.infra.localstack.ephemeral import free_ports


def free_port():
    return free_ports(1)[0]


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def of(name, *labels):
    """A sample by its label values, in any order: a scrape has them by the labels' names."""
    return name, frozenset(labels)


def samples(port):
    """Of every sample: name -> sum over all labels, of(name, label values) -> value."""
    values = {}
    for family in text_string_to_metric_families(get(port, "/metrics")[1]):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
            values[of(sample.name, *sample.labels.values())] = sample.value
    return values


def until(done, timeout_s=WAIT_S):
    """Return the value of `done` once it is true."""
    deadline, last = time.monotonic() + timeout_s, None
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            last = done()
            if last:
                return last
        time.sleep(0.2)
    raise AssertionError(f"not in {timeout_s} s: {last}")
