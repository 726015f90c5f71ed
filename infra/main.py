"""The console script."""

from __future__ import annotations

from drumline.infra import own_packages


def main() -> None:
    """`drumline`, see cli.py."""
    own_packages.first()
    from drumline.infra.cli import main as cli

    cli()


if __name__ == "__main__":
    main()
