"""Samples of links from a made-up tree of sysfs: speed, state, counters, and what is wrong."""

import time

import pytest
from support.fake_sysfs import FakeSysfs
from support.wait_limit import WAIT_S

from drumline.infra.config.agent_settings import AgentSettings
from drumline.producers.network.link_sampler import LinkBatches, LinkSampler
from drumline.producers.network.link_samples import LinkSamples, expected_speeds
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import decode, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

S = 10**9
PORT = "infiniband/mlx5_0/ports/1"


@pytest.fixture
def sysfs(tmp_path):
    return FakeSysfs(tmp_path / "sys")


@pytest.fixture
def samples(sysfs):
    links = LinkSamples({}, sysfs.root)
    assert list(links.read(1 * S)) == [], "no interval yet"
    return links


def read(samples, second):
    return {sample.texts["device"]: sample for sample in samples.read(second * S)}


def test_links_are_ports_and_interfaces_of_hardware(samples):
    rows = read(samples, 11)
    assert {name: (row.texts["link"], row.texts["state"], row.numbers["speed_mbps"]) for name, row in rows.items()} == {
        "mlx5_0/1": ("infiniband", "up", 400_000),
        "mlx5_1/1": ("infiniband", "down", -1),
        "mlx5_bond_0/1": ("roce", "up", 100_000),
        "eth0": ("ethernet", "up", 25_000),
        "eth1": ("ethernet", "down", -1),
    }
    assert {row.texts["reason"] for row in rows.values()} == {""}, "a port without a cable was never up"
    assert {row.numbers["is_down"] for row in rows.values()} == {0}


def test_counts_are_of_the_interval_and_data_is_in_bytes(sysfs, samples):
    for name, count in (
        ("counters/port_rcv_data", 250),
        ("counters/symbol_error", 2),
        ("hw_counters/out_of_sequence", 4),
    ):
        sysfs.add(f"{PORT}/{name}", count)
    sysfs.add("net/eth0/statistics/rx_crc_errors", 5)
    rows = read(samples, 11)
    port, interface = rows["mlx5_0/1"].numbers, rows["eth0"].numbers
    assert (port["interval_ns"], port["rx_bytes"], port["tx_bytes"]) == (10 * S, 1_000, 0), "words of four octets"
    assert (port["symbol_errors"], port["sequence_errors"], port["tx_errors"]) == (2, 4, -1)
    assert (interface["symbol_errors"], interface["timeouts"], interface["recoveries"]) == (5, -1, -1)


def test_a_counter_that_falls_is_unknown_and_counts_from_there(sysfs, samples):
    sysfs.write(f"{PORT}/counters/port_rcv_data", 10)
    assert read(samples, 11)["mlx5_0/1"].numbers["rx_bytes"] == -1
    sysfs.add(f"{PORT}/counters/port_rcv_data", 1)
    assert read(samples, 21)["mlx5_0/1"].numbers["rx_bytes"] == 4


def test_a_link_that_was_up_and_goes_down_is_down_until_it_is_up(sysfs, samples):
    sysfs.write(f"{PORT}/state", "1: DOWN")
    sysfs.write("net/eth0/operstate", "down")
    rows = read(samples, 11)
    for device in ("mlx5_0/1", "eth0"):
        assert (rows[device].numbers["is_down"], rows[device].texts["reason"]) == (1, "it was up before")
    sysfs.write(f"{PORT}/state", "4: ACTIVE")
    assert read(samples, 21)["mlx5_0/1"].numbers["is_down"] == 0


def test_a_link_is_slow_against_its_best_or_against_the_setting(sysfs, samples):
    sysfs.write(f"{PORT}/rate", "200 Gb/sec (4X HDR)")
    row = read(samples, 11)["mlx5_0/1"]
    assert (row.numbers["speed_mbps"], row.numbers["expected_mbps"]) == (200_000, 400_000)
    assert row.texts["reason"] == "200 Gbit/s; it had 400"
    wanted = LinkSamples(expected_speeds("mlx5_0/*=400, eth0=10"), sysfs.root)
    list(wanted.read(1 * S))
    rows = read(wanted, 11)
    assert rows["mlx5_0/1"].texts["reason"] == "200 Gbit/s; DRUMLINE_AGENT__LINKS wants 400"
    assert rows["eth0"].texts["reason"] == "", "faster than wanted"


def test_a_link_that_was_never_up_is_down_where_a_speed_is_set_for_it(sysfs):
    wanted = LinkSamples(expected_speeds("mlx5_1/*=400"), sysfs.root)
    list(wanted.read(1 * S))
    rows = read(wanted, 11)
    down = {name: row.texts["reason"] for name, row in rows.items() if row.numbers["is_down"]}
    assert down == {"mlx5_1/1": "DRUMLINE_AGENT__LINKS names it"}


@pytest.mark.parametrize("text", ["mlx5_0", "=400", "eth0=fast"])
def test_a_wrong_setting_is_refused(text):
    with pytest.raises(ValueError, match="links"):
        AgentSettings(links=text)


def test_a_link_that_vanishes_has_no_row_and_unreadable_files_are_unknown(sysfs, samples):
    (sysfs.root / "class/net/eth0/speed").unlink()
    (sysfs.root / "class/net/eth1/operstate").unlink()
    for file in (sysfs.root / f"class/{PORT}/counters").iterdir():
        file.unlink()
    rows = read(samples, 11)
    assert (rows["eth0"].numbers["speed_mbps"], rows["mlx5_0/1"].numbers["rx_bytes"]) == (-1, -1)
    assert list(LinkSamples({}, sysfs.root / "nothing").read(1)) == []


def test_a_batch_is_inside_the_contract_and_keyed_by_its_host(sysfs, samples):
    key, batch = LinkBatches("agent-1", "node-a").batch(list(samples.read(11 * S)))
    check(batch)
    again = decode(model(Topic.NETWORK), encode(model(Topic.NETWORK), batch))
    devices = [again.envelope["devices"][index] for index in again.columns["device"]]
    assert (key, again.rows, devices[0]) == ("node-a", 5, "mlx5_0/1")


def test_the_thread_samples_at_its_period_and_costs_little(sysfs, tmp_path):
    """16 ports with all their files once in 10 s: the reading is timed alone, by CPU time."""
    for port in range(2, 15):
        for path in list((sysfs.root / f"class/{PORT}").rglob("*")):
            if path.is_file():
                inside = path.relative_to(sysfs.root / f"class/{PORT}")
                sysfs.write(f"infiniband/mlx5_0/ports/{port}/{inside}", path.read_text().strip())
    samples = LinkSamples({}, sysfs.root)
    begun = time.thread_time()
    for second in range(10):
        list(samples.read(second * S))
    assert (time.thread_time() - begun) / 10 < 0.1, "1% of a core at 10 s"
    spool = SpoolWriter(tmp_path / "spool", {"process_id": "agent-1", "sequence": 0})
    sampler = LinkSampler(spool, LinkBatches("agent-1", "node-a"), samples, 0.01)
    sampler.start()
    segment, frames = Segment(SpoolDirectory(spool.folder), "000000000000.seg"), []
    until = time.monotonic() + WAIT_S
    while len(frames) < 3 and time.monotonic() < until:
        frames += segment.read(False)
    sampler.stop()
    spool.close()
    assert len(frames) >= 3
    assert not sampler.is_alive()
