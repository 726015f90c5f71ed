"""Ctrl-C ends a command with 130 wherever it arrives, also where a library turns it into an error of its own."""

from __future__ import annotations

import os
import signal

import click
import pytest
import typer

from drumline.cli.app import TyperCommand


@pytest.fixture(autouse=True)
def signals():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def command(*, press: bool) -> click.Command:
    app = typer.Typer()

    @app.command()
    def anything() -> None:
        try:
            if press:
                os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        raise TypeError("expected a string")  # what a C extension makes of the interrupt

    return TyperCommand("anything", app)


def run(command: click.Command) -> None:
    command.main([], standalone_mode=False)


def test_an_error_that_a_library_made_of_ctrl_c_is_a_ctrl_c():
    with pytest.raises(SystemExit) as ended:
        run(command(press=True))
    assert ended.value.code == 130


def test_ctrl_c_before_typer_has_begun_is_one_too(monkeypatch):
    monkeypatch.setattr(typer.main, "get_command", lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        run(command(press=False))
    assert ended.value.code == 130


def test_without_ctrl_c_the_error_stays_what_it_is():
    with pytest.raises(TypeError, match="expected a string"):
        run(command(press=False))


def test_a_process_that_ignores_ctrl_c_keeps_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(TypeError):
        run(command(press=True))
