"""Interfaces by their addresses, as this kernel knows them."""

import socket

from drumline.producers.network.interfaces import read_interfaces


def test_the_loopback_is_known_by_both_its_addresses():
    known = read_interfaces()
    assert known["127.0.0.1"] == "lo"
    assert known.get("[::1]", "lo") == "lo"


def test_addresses_are_those_that_sockets_have():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as opened:
        assert opened.getsockname()[0] in read_interfaces()
