"""The console script."""

from __future__ import annotations

import signal

from drumline.infra.runtime import sys_path as own_packages
from drumline.infra.runtime.signals import end_at_sigterm_as_init


def main() -> None:
    """`drumline`, see app.py. Until a command runs, Ctrl-C ends the process without a message."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_at_sigterm_as_init()
    own_packages.prefer_own_packages()
    from drumline.cli.app import main as cli

    cli()


if __name__ == "__main__":
    main()
