"""Make two "hosts" of this machine, for the shape two_hosts: a network namespace and a host name for each of two ranks.

Needs root and `ip`. NCCL takes the ranks for ones of different hosts, and connects them by sockets.
"""

import subprocess

COMMANDS = """
ip netns add zoo0
ip netns add zoo1
ip link add zoov0 netns zoo0 type veth peer name zoov1 netns zoo1
ip -n zoo0 link set lo up
ip -n zoo1 link set lo up
ip -n zoo0 link set zoov0 up
ip -n zoo1 link set zoov1 up
ip -n zoo0 addr add 10.77.0.1/24 dev zoov0
ip -n zoo1 addr add 10.77.0.2/24 dev zoov1
"""


class Hosts:
    """The namespaces. `remove` ends them, whatever was made."""

    def __init__(self) -> None:
        self.are_made = False

    def make(self) -> None:
        """Make them. Raises RuntimeError where that is not possible."""
        self.are_made = True
        for command in COMMANDS.strip().splitlines():
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=10)
            except (OSError, subprocess.SubprocessError) as error:
                raise RuntimeError(f"{command}: {getattr(error, 'stderr', '') or error}") from None

    def of(self, rank: int) -> tuple[list[str], dict[str, str]]:
        """Return what precedes the command of a rank, and more of its environment."""
        shell = f'hostname node-{rank}; exec "$@"'
        command = ["ip", "netns", "exec", f"zoo{rank}", "unshare", "--uts", "sh", "-c", shell, "sh"]
        interface = f"zoov{rank}"
        values = {
            "MASTER_ADDR": "10.77.0.1", "NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_HOSTID": f"node-{rank}",
        }  # fmt: skip
        return command, values

    def remove(self) -> None:
        """Remove them."""
        for rank in (0, 1) if self.are_made else ():
            subprocess.run(["ip", "netns", "del", f"zoo{rank}"], capture_output=True, timeout=10, check=False)
