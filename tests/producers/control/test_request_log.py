"""Order is the log's, time the broker's, and Kafka's key is the name, whatever a sender states."""

from dataclasses import replace

import pytest

from drumline.producers.control.request_log import ControlLog
from drumline.schemas.control import BadControl, Control, encode

MS, S = 10**6, 10**9
NOW = 1_700_000_000 * S
HOUR = 3_600 * S
POLICY = Control("p", "policy", "off", start_ns=NOW, until_ns=NOW + HOUR, requested_ns=NOW)


def taken(control, log=None, key=b"p", at_ns=NOW, partition=0):
    return (log or ControlLog()).read(partition, key, encode(control), at_ns // MS)


def test_kafkas_key_is_the_name():
    assert taken(replace(POLICY, key="shown"), key=b"hidden").key == "hidden"
    for key in (None, b"", b"\xff"):
        with pytest.raises(BadControl):
            taken(POLICY, key=key)


@pytest.mark.parametrize("off_ns", [-2 * HOUR, 2 * HOUR])
def test_a_request_of_a_client_whose_clock_is_off_is_in_force_from_now_for_as_long(off_ns):
    times = {"start_ns": NOW + off_ns, "until_ns": NOW + off_ns + HOUR, "requested_ns": NOW + off_ns}
    control = taken(replace(POLICY, **times))
    assert (control.start_ns, control.until_ns, control.requested_ns) == (NOW, NOW + HOUR, NOW)


def test_what_begins_a_minute_before_it_is_asked_still_does():
    window = replace(POLICY, kind="window", start_ns=NOW - 60 * S, until_ns=NOW + 60 * S)
    control = taken(window, at_ns=NOW + 5 * S)
    assert (control.start_ns - NOW, control.until_ns - NOW) == (-55 * S, 65 * S)


@pytest.mark.parametrize("requested_ns", [0, NOW - 30 * 24 * HOUR, (1 << 63) - 1])
def test_times_that_do_not_belong_together_are_no_request(requested_ns):
    with pytest.raises(BadControl, match="days before or after it was asked"):
        taken(replace(POLICY, requested_ns=requested_ns))


def test_a_later_record_of_a_partition_comes_after_the_earlier_ones_though_the_brokers_clock_goes_back():
    log = ControlLog()
    places = [taken(POLICY, log, at_ns=NOW + at * S).requested_ns for at in (0, 0, -HOUR // S, 1)]
    assert places == [NOW, NOW + 1, NOW + 2, NOW + S]
    assert taken(POLICY, log, at_ns=NOW - S, partition=1).requested_ns == NOW - S
    assert log.read(0, b"p", None, NOW // MS) is None
