"""A wrapped method is the engine's own one to its caller, also where it, or the adapter, raises."""

import pytest

from drumline.producers.engines.seams import around


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
