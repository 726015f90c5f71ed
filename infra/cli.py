"""The `drumline` command. Each command lives in its own module `command_NAME.py` and is imported when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click
import typer.main
from pydantic import ValidationError

#: name -> (module, what it does). The order is the order of `drumline --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("command_up", "Start the local stack: Apache Kafka and the ClickHouse engine."),
    "down": ("command_down", "Stop the local stack; data stays."),
    "status": ("command_status", "Show what runs, where, and how much it uses."),
    "topics": ("command_topics", "Create, check and read the Kafka topics."),
    "migrate": ("command_migrate", "Bring the ClickHouse schema up to date."),
    "replay": ("command_replay", "Publish a recorded GPU job."),
    "stream": ("command_stream", "Run a stream worker: rolling windows and straggler verdicts."),
    "sink": ("command_sink", "Write topics to ClickHouse, exactly once."),
    "audit": ("command_audit", "Prove that nothing was lost or doubled."),
    "sql": ("command_sql", "Ask ClickHouse, read-only."),
    "evaluate": ("command_evaluate", "Judge the straggler verdicts over a recorded job with known faults."),
    "demo": ("command_demo", "Run a recorded job through the whole platform and check what comes out."),
    "config": ("command_config", "Print the settings in force (secrets hidden)."),
}


class LazyCommands(click.Group):
    """A group whose commands are imported on use, so that `drumline sql` does not load Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"drumline.infra.{COMMANDS[cmd_name][0]}")
        command: Any = typer.main.get_command(module.app)
        command.name = cmd_name
        return command  # type: ignore[no-any-return]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """drumline: which rank holds the job back, why, and what it costs.

    Settings come from the environment (DRUMLINE_...); `drumline config` prints them.
    """


def main() -> None:
    """Console entry point. Settings that do not validate end with exit code 2 and the field's name."""
    try:
        root(standalone_mode=True)
    except ValidationError as error:
        for problem in error.errors():
            name = "DRUMLINE_" + "__".join(str(part) for part in problem["loc"]).upper()
            print(f"drumline: {name}: {problem['msg']}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        print(f"drumline: {error}; install the extra that has it: pip install 'drumline[all]'", file=sys.stderr)
        sys.exit(2)
