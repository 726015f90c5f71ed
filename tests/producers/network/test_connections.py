"""Answers of a kernel about its TCP connections: bytes of Linux 6.18, and those of older ones, which are shorter."""

import base64
import os
import socket
import struct

import pytest

from drumline.producers.network.connections import (
    SOCK_DIAG_BY_FAMILY,
    TcpConnection,
    parse_connection,
    read_connections,
)
from drumline.producers.network.netlink import parse_answer

#: Answer of a kernel with one connection, 10.77.0.1:48554 to 10.77.0.2:7001, which sent 3 MB; then the end.
ANSWER = base64.b64decode(
    "mAEAABQAAgACAAAAuW8AAAIBAAC9qhtZCk0AAQAAAAAAAAAAAAAAAApNAAIAAAAAAAAAAAAAAAAAAAAADRAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "t2sNAAUACAAAAAAACAAPAAAAAAAMABUAAQAAAAAAAAAGABYAUgAAABwBAgABAAAAAAeqAOAcAwBAnAAAqAUAAOgDAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAEABAAAAAAAAQAEAAEABAADcBQAAUAcBAGIBAAAhAgAAmAAAAEwCAACoBQAAAwAAAAAAAACQOAAAAAAAAMAIgIIHAAAA///////////Bxi0A"
    "AAAAAOgDAAAAAAAAHAgAACoAAAAAAAAAAgAAAAEAAAAZCAAAVqVtigAAAACgDwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAaCAAAAAAAAMDGLQAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAlDwAAAgBAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAFAAAAAMAAgACAAAA"
    "uW8AAAAAAAA="
)
INODE = 879543
SEEN = TcpConnection("10.77.0.1:48554", "10.77.0.2:7001", INODE, 3_000_001, 1_000, 4_000, 0, 0, 2_322_441_558, 0)
#: Of the message: begin of its sockets' addresses, of their queue, of its attribute with tcp_info, and of tcp_info.
LOCAL, REMOTE, QUEUE, ATTRIBUTE, INFO = 24, 40, 76, 124, 128


def parsed(answer, inodes):
    """Return the connections of an answer, and whether it is the last."""
    messages, is_last = parse_answer(answer, SOCK_DIAG_BY_FAMILY)
    return [of for message in messages if (of := parse_connection(message, inodes))], is_last


def changed(at, value, answer=ANSWER):
    return answer[:at] + value + answer[at + len(value) :]


def with_info(length):
    """The message of a kernel whose tcp_info is shorter."""
    head = changed(ATTRIBUTE, struct.pack("=H", 4 + length))[: INFO + length]
    return struct.pack("=I", len(head)) + head[4:]


def test_a_connection_has_what_the_kernel_counted_of_it():
    assert parsed(ANSWER, {INODE}) == ([SEEN], True)
    assert parsed(ANSWER, {INODE + 1}) == ([], True)


def test_bytes_that_are_not_acknowledged_are_counted_and_not_those_that_are_not_read():
    waiting = changed(QUEUE - 4, struct.pack("=II", 7, 4_000_000))
    assert parsed(waiting, {INODE})[0] == [SEEN._replace(queued=4_000_000)]


def test_the_answer_has_its_parts_at_these_places():
    assert struct.unpack_from("=HH", ANSWER, ATTRIBUTE) == (284, 2)
    assert ANSWER[LOCAL : LOCAL + 4] == socket.inet_aton("10.77.0.1")
    assert ANSWER[REMOTE : REMOTE + 4] == socket.inet_aton("10.77.0.2")


def test_retransmitted_segments_stand_for_bytes_where_a_kernel_counts_no_bytes():
    lost = changed(INFO + 100, struct.pack("=I", 7), with_info(200))
    assert parsed(lost, {INODE})[0] == [SEEN._replace(retransmitted=7 * 1448)]
    assert parsed(changed(INFO + 208, struct.pack("=Q", 99)), {INODE})[0] == [SEEN._replace(retransmitted=99)]


@pytest.mark.parametrize("length", [0, 8, 104, 160, 183])
def test_a_kernel_that_does_not_count_busy_time_has_no_connections(length):
    assert parsed(with_info(length), {INODE}) == ([], False)
    assert parsed(with_info(184), {INODE})[0] == [SEEN]


def test_every_cut_of_an_answer_is_read_without_an_error():
    for length in range(len(ANSWER)):
        connections, _ = parsed(ANSWER[:length], {INODE})
        assert connections in ([], [SEEN])


def test_connections_within_a_host_are_left_out():
    assert parsed(changed(REMOTE, socket.inet_aton("10.77.0.1")), {INODE}) == ([], True)
    assert parsed(changed(REMOTE, socket.inet_aton("127.0.0.2")), {INODE}) == ([], True)


def test_addresses_of_ipv4_in_ipv6_are_the_same_as_at_the_other_end():
    def of_six(*addresses):
        packed = b"".join(socket.inet_pton(socket.AF_INET6, address) for address in addresses)
        return changed(16, bytes([socket.AF_INET6]), changed(LOCAL, packed))

    [mapped] = parsed(of_six("::ffff:10.77.0.1", "::ffff:10.77.0.2"), {INODE})[0]
    assert mapped == SEEN
    [opened] = parsed(of_six("fd00::1", "fd00::2"), {INODE})[0]
    assert (opened.local, opened.remote) == ("[fd00::1]:48554", "[fd00::2]:7001")


def test_an_error_of_the_kernel_is_raised():
    error = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -2)
    with pytest.raises(FileNotFoundError):
        parsed(error, {INODE})


def test_a_kernel_answers_about_its_connections():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as opened:
        assert read_connections({os.fstat(opened.fileno()).st_ino}) == []  # it is within this host
