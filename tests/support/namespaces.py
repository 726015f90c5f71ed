"""Hosts on one machine: network namespaces with host names of their outside, and links between each two of them.

Needs root, `unshare` and `nsenter`; no `ip` or `tc`: what these do is done by netlink, in few messages. Each pair of
hosts has a link of its outside (veth), whose ends have a rate (tbf) each, so one direction alone may be slow.

usage: namespaces.py COMMAND ARGUMENT... (inside a namespace; see `COMMANDS`)
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, permutations
from pathlib import Path

if __package__:
    from support import packet_drops
else:  # inside a namespace, as a program
    import packet_drops  # type: ignore[no-redef,import-not-found]

NEWLINK, NEWADDR, NEWROUTE, NEWQDISC, DELQDISC, NEWFILTER, ERROR = 16, 20, 24, 36, 37, 44, 2
REQUEST, ACKNOWLEDGE, CREATE, REPLACE = 0x1, 0x4, 0x400, 0x100
IFNAME, MTU, PACKET_BYTES, LINKINFO, NS_PID, INFO_KIND, INFO_DATA, PEER = 3, 4, 41, 18, 19, 1, 2, 1
DESTINATION, OUTPUT, GATEWAY, SOURCE = 1, 4, 5, 7
MAIN_TABLE, STATIC = 254, 4
UP, ROOT, CLSACT, COMING = 1, 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFFFFF2
CLSACT_HANDLE, BPF_FD, BPF_NAME, BPF_FLAGS, DIRECT = 0xFFFF0000, 6, 7, 8, 1
TCA_KIND, TCA_OPTIONS, TBF_PARMS, TBF_BURST = 1, 2, 1, 6
ETHERNET, ETH_P_ALL = 1, 3
#: Largest packet that the kernel has not cut yet, and bytes that pass at once, no fewer: with more, an idle link is
#: faster than its rate.
PACKET, BURST = 1 << 15, 5 << 13


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def send(kind: int, flags: int, body: bytes) -> None:
    """Send a message to this namespace's kernel. Raises OSError for its error."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(struct.pack("IHHII", 16 + len(body), kind, REQUEST | ACKNOWLEDGE | flags, 1, 0) + body)
        answer = kernel.recv(1 << 16)
    (code,) = struct.unpack_from("i", answer, 16)
    if struct.unpack_from("H", answer, 4)[0] == ERROR and code:
        raise OSError(-code, os.strerror(-code))


def interface(index: int = 0, flags: int = 0) -> bytes:
    return struct.pack("BxHiII", 0, 0, index, flags, UP if flags or index else 0)


def veth(name: str, peer: str, pid: str) -> None:
    """Create a link whose other end, `peer`, is in the namespace of a process."""
    other = interface() + text(IFNAME, peer) + attribute(NS_PID, struct.pack("I", int(pid)))
    data = attribute(INFO_DATA, attribute(PEER, other))
    info = attribute(LINKINFO, text(INFO_KIND, "veth") + data)
    send(NEWLINK, CREATE, interface() + text(IFNAME, name) + info)


def up(name: str, address: str = "") -> None:
    """Set a link up, with an address of a network of 256."""
    index = socket.if_nametoindex(name)
    if address:
        packed = socket.inet_aton(address)
        body = struct.pack("BBBBI", socket.AF_INET, 24, 0, 0, index) + attribute(1, packed) + attribute(2, packed)
        send(NEWADDR, CREATE, body)
    send(NEWLINK, 0, interface(index, UP))


def loopback(address: str) -> None:
    """Give the loopback interface an address that all links lead to."""
    packed = socket.inet_aton(address)
    body = struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, socket.if_nametoindex("lo"))
    send(NEWADDR, CREATE, body + attribute(1, packed) + attribute(2, packed))


def route(name: str, address: str, gateway: str, source: str) -> None:
    """Reach another host's own address through a link, as this host's own."""
    body = struct.pack("BBBBBBBBI", socket.AF_INET, 32, 0, 0, MAIN_TABLE, STATIC, 0, 1, 0)
    values = [(DESTINATION, address), (GATEWAY, gateway), (SOURCE, source)]
    body += b"".join(attribute(kind, socket.inet_aton(value)) for kind, value in values)
    send(NEWROUTE, CREATE | REPLACE, body + attribute(OUTPUT, struct.pack("I", socket.if_nametoindex(name))))


def mtu(name: str, most: str) -> None:
    """Set the largest packet of an end: it drops larger ones that the other end sends, where that one's is larger."""
    send(NEWLINK, 0, interface(socket.if_nametoindex(name), UP) + attribute(MTU, struct.pack("I", int(most))))


def down(name: str) -> None:
    """Cut a link: its carrier is gone at both ends."""
    send(NEWLINK, 0, interface(socket.if_nametoindex(name), 0))


def rate(name: str, bytes_per_s: str) -> None:
    """Let an end send no more bytes a second; 0 = as many as it can. A queue holds what is too much."""
    index, value = socket.if_nametoindex(name), int(float(bytes_per_s))
    message = struct.pack("BxxxiIII", 0, index, 0, ROOT, 0)
    if not value:
        with suppress(FileNotFoundError):  # it has none
            send(DELQDISC, 0, message)
        return
    send(NEWLINK, 0, interface(index, UP) + attribute(PACKET_BYTES, struct.pack("I", PACKET)))
    ratespec = struct.pack("BBHhHI", 0, ETHERNET, 0, 0, 0, min(value, 0xFFFFFFFF))
    limit = BURST + value // 1000  # 1 ms: behind a long queue the answers to what the other end sends would wait too
    parameters = ratespec + struct.pack("BBHhHI", *[0] * 6) + struct.pack("III", limit, 0, 0)
    options = attribute(TBF_PARMS, parameters) + attribute(TBF_BURST, struct.pack("I", BURST))
    send(NEWQDISC, CREATE | REPLACE, message + text(TCA_KIND, "tbf") + attribute(TCA_OPTIONS, options))


def segments(name: str) -> None:
    """Let an end send packets of its MTU: of larger ones, which veth passes on, many would be lost at once."""
    packet_drops.without_large_packets(name)


def drop(name: str, part: str, largest: str) -> None:
    """Let an end lose a part of what comes in, and all packets above a number of bytes; "0", "0" = none again."""
    index = socket.if_nametoindex(name)
    message = struct.pack("BxxxiIII", 0, index, CLSACT_HANDLE, CLSACT, 0)
    with suppress(OSError):  # it has none
        send(DELQDISC, 0, message)
    if float(part) <= 0 and int(largest) <= 0:
        return
    file = packet_drops.program(float(part), int(largest) or 1 << 20)
    send(NEWQDISC, CREATE, message + text(TCA_KIND, "clsact"))
    of_all = struct.pack("BxxxiIII", 0, index, 0, COMING, 1 << 16 | socket.htons(ETH_P_ALL))
    options = attribute(BPF_FD, struct.pack("i", file)) + text(BPF_NAME, "drop")
    options += attribute(BPF_FLAGS, struct.pack("I", DIRECT))
    send(NEWFILTER, CREATE, of_all + text(TCA_KIND, "bpf") + attribute(TCA_OPTIONS, options))


def buffers(most: str) -> None:
    """Limit what the kernel holds of each connection: links that are slower than real ones need it."""
    for name in ("tcp_wmem", "tcp_rmem"):
        Path("/proc/sys/net/ipv4", name).write_text(f"4096 16384 {most}")


COMMANDS = {
    "veth": veth, "up": up, "loopback": loopback, "route": route, "mtu": mtu, "down": down, "rate": rate,
    "segments": segments, "drop": drop, "buffers": buffers,
}  # fmt: skip


class Hosts:
    """Hosts with a link between each two. `names`: of the hosts; `of`: name -> process that holds its namespaces."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.of = list(names), dict[str, subprocess.Popen[bytes]]()
        try:
            for name in names:
                self.of[name] = _holder(name)
                self.apply(name, "up", "lo")
            for number, (a, b) in enumerate(combinations(names, 2)):
                ends = self.end(a, b), self.end(b, a)
                self.apply(a, "veth", *ends, str(self.of[b].pid))
                for host, end, last in ((a, ends[0], 1), (b, ends[1], 2)):
                    self.apply(host, "up", end, f"10.77.{number}.{last}")
            for name in names:
                self.apply(name, "loopback", self.own_address(name))
            for a, b in permutations(names, 2):
                route_of = self.end(a, b), self.own_address(b), self.address(b, a), self.own_address(a)
                self.apply(a, "route", *route_of)
        except BaseException:
            self.close()
            raise

    def end(self, host: str, peer: str) -> str:
        """Return the name of a host's end of its link to another."""
        return f"v{self.names.index(host)}to{self.names.index(peer)}"

    def address(self, host: str, peer: str) -> str:
        """Return a host's address on its link to another."""
        pairs = list(combinations(self.names, 2))
        number = next(at for at, pair in enumerate(pairs) if set(pair) == {host, peer})
        return f"10.77.{number}.{1 if pairs[number][0] == host else 2}"

    def own_address(self, host: str) -> str:
        """Return the address that a host has for all others."""
        return f"10.78.0.{self.names.index(host) + 1}"

    def inside(self, host: str) -> list[str]:
        """Return what precedes a command that runs on a host."""
        return ["nsenter", "--target", str(self.of[host].pid), "--net", "--uts", "--"]

    def apply(self, host: str, *command: str) -> None:
        """Run a command of this file on a host."""
        subprocess.run([*self.inside(host), sys.executable, __file__, *command], check=True, capture_output=True)

    def limit(self, host: str, peer: str, bytes_per_s: float) -> None:
        """Limit what a host sends another; 0 = no limit."""
        self.apply(host, "rate", self.end(host, peer), str(bytes_per_s))

    def lose(self, host: str, peer: str, part: float, largest: int = 0) -> None:
        """Lose a part of the packets that a host sends another, and all above `largest` bytes; 0 = none."""
        self.apply(host, "segments", self.end(host, peer))
        self.apply(peer, "drop", self.end(peer, host), str(part), str(largest))

    def restore(self, host: str, peer: str) -> None:
        """Set up a link that was cut."""
        self.apply(host, "up", self.end(host, peer))

    def cut(self, host: str, peer: str) -> None:
        """Cut the link of two hosts."""
        self.apply(host, "down", self.end(host, peer))

    def close(self) -> None:
        """Remove all: a namespace goes with its last process."""
        for holder in self.of.values():
            holder.kill()
            holder.wait()


def _holder(name: str) -> subprocess.Popen[bytes]:
    """Return a process in a network namespace of its outside, with a host name."""
    command = ["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && exec sleep infinity"]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    outside, until = os.readlink("/proc/self/ns/net"), time.monotonic() + 10
    while time.monotonic() < until:
        if holder.poll() is not None:
            break
        if (
            os.readlink(f"/proc/{holder.pid}/ns/net") != outside
            and Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n"
        ):
            return holder
        time.sleep(0.01)
    holder.kill()
    raise OSError("no network namespace: it needs root")


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """Yield hosts, and remove them."""
    of = Hosts(names)
    try:
        yield of
    finally:
        of.close()


if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
