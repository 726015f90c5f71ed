"""GPUs on the PCI bus, whether the driver answers for them or not."""

from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
#: Vendor, and classes of display controllers that compute (pci.ids).
_VENDOR, _CLASSES = "0x10de", ("0x0302", "0x0300")


def gpus_on_bus(root: Path = PCI) -> int:
    """Return the number of NVIDIA's GPUs on the PCI bus, whether the driver answers for them or not."""
    count = 0
    for device in root.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        count += vendor == _VENDOR and kind.startswith(_CLASSES)
    return count
