"""Headers of dead letters: one writer, one reader, and names that stay as they are on the wire."""

from drumline.schemas.dead_letters import Origin, Rejection, read_headers, write_headers

NAMES = (
    "drumline.origin.topic", "drumline.origin.topic_id", "drumline.origin.partition", "drumline.origin.offset",
    "drumline.origin.timestamp_ms", "drumline.error.code", "drumline.error.text", "drumline.error.by",
    "drumline.schema_id", "drumline.version",
)  # fmt: skip
OF_WORKERS = (0, 2, 3, 5, 6, 7)


def test_a_sink_writes_all_headers_and_the_record_keeps_its_own():
    origin, rejection = Origin("t", 3, 17, "id", 5), Rejection("BadFrame", "x" * 2_000, "sink", "", "1.0")
    written = write_headers(origin, rejection, [("traceparent", b"00-1"), ("drumline.error.code", b"Older")])
    assert tuple(name for name, _ in written[:10]) == NAMES
    assert dict(written[:10])["drumline.schema_id"] == b""
    headers = read_headers(written)
    assert headers.origin == ("id", 3, 17, 0)
    assert (headers.code, headers.by, len(headers.text)) == ("BadFrame", "sink", 1_000)
    assert headers.record == (("traceparent", b"00-1"),)


def test_a_worker_leaves_out_the_headers_that_it_has_no_value_for():
    written = write_headers(Origin("t", 3, 17), Rejection("KeyError", "text", "streams"))
    assert tuple(name for name, _ in written) == tuple(NAMES[i] for i in OF_WORKERS)
    assert read_headers(written).origin == ("", 3, 17, 0)


def test_headers_of_another_program_have_no_origin():
    headers = read_headers([("drumline.origin.partition", b"x"), ("a", "text"), ("b", None)])
    assert (headers.origin, headers.code, headers.by) == (None, "?", "?")
    assert headers.record == (("a", b"text"), ("b", None))
