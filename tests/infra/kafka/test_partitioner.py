"""Keys go to the partitions of Kafka's Java clients and of the stream worker's client."""

import os
import re
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_the_worker

from drumline.infra.kafka.partitioner import murmur2, partition_of

PAGE = Path(__file__).parents[3] / "docs/reference/record-format.md"
#: Of the tests of Kafka's Java client.
KNOWN = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}


@pytest.mark.parametrize("key", KNOWN)
def test_the_hash_is_that_of_kafkas_java_client(key):
    assert murmur2(key) == KNOWN[key] & 0xFFFFFFFF


def test_every_length_and_byte_hashes_as_in_the_client_of_the_stream_worker():
    keys = [os.urandom(size) for size in range(200)]
    assert [murmur2(key) for key in keys] == [murmur2_of_the_worker(key) & 0xFFFFFFFF for key in keys]


def test_the_example_of_the_record_format_is_true():
    [(key, number, partitions, partition)] = re.findall(
        r"The key `(\S+)` has the hash `(0x\w+)`: of (\d+) partitions, it is on (\d+)", PAGE.read_text()
    )
    assert murmur2(key.encode()) == int(number, 16)
    assert partition_of(key.encode(), int(partitions)) == int(partition)
