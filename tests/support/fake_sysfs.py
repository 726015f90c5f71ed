"""A made-up tree of sysfs for hosts without InfiniBand: tests/data/made_up_sysfs.json, path -> content.

Written by hand after Linux' Documentation/ABI (sysfs-class-infiniband, sysfs-class-net): two InfiniBand ports of
400 Gbit/s, a RoCE port, an Ethernet interface, and interfaces that are no hardware.
"""

import json
from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "made_up_sysfs.json"


class FakeSysfs:
    """The tree in a folder; tests change its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path, content in json.loads(FILE.read_text()).items():
            self.write(path, content)

    def write(self, path: str, content: object) -> None:
        file = self.root / "class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def add(self, path: str, count: int) -> None:
        self.write(path, int((self.root / "class" / path).read_text()) + count)
