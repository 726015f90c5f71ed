"""A wrapped method is the engine's own one to its caller, also where it, or the adapter, raises."""

import pytest

from drumline.producers.engines.seams import around, is_tried


class Engine:
    def generate(self, tokens):
        """Generate."""
        if tokens < 0:
            raise KeyboardInterrupt
        return tokens


def test_a_call_that_raises_is_taken_as_failed_and_nothing_an_adapter_raises_reaches_the_engine(monkeypatch):
    seen = []

    def failed():
        seen.append("failed")
        raise ValueError

    monkeypatch.setattr(Engine, "generate", Engine.generate)
    around(Engine, "generate", lambda *_: 7, lambda note, result, *_: seen.append((note, result)), failed)
    assert (Engine().generate(3), Engine.generate.__doc__) == (3, "Generate.")
    with pytest.raises(KeyboardInterrupt):
        Engine().generate(-1)
    assert seen == [(7, 3), "failed"]


def test_an_unknown_version_of_what_training_imports_too_is_reported_at_the_first_request_only(capfd):
    class Manager:
        def start(self):
            return "started"

    assert not is_tried("transformers", "9.9.1", ["5.17", "5.19"], Manager, "start")
    assert capfd.readouterr().err == ""
    assert [Manager().start(), Manager().start()] == ["started"] * 2
    assert capfd.readouterr().err.splitlines() == [
        "drumline: iterations and requests are not recorded: transformers 9.9.1 is not known (5.17 to 5.19 are)"
    ]


def test_a_version_that_was_tried_is_not_wrapped_by_the_report():
    class Manager:
        def start(self):
            """Begins."""

    start = Manager.start
    assert is_tried("transformers", "5.17.3", ["5.17", "5.19"], Manager, "start")
    assert Manager.start is start
