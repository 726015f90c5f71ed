"""Make NCCL take two ranks of this machine for ranks of two hosts, connected by sockets; for the shape two_hosts."""


def host_of(rank: int) -> tuple[list[str], dict[str, str]]:
    """Return what precedes the command of a rank, and more of its environment. Needs root for the host's name."""
    command = ["unshare", "--uts", "sh", "-c", f'hostname node-{rank}; exec "$@"', "sh"]
    values = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"node-{rank}"}
    return command, values
