"""The `drumline` command. Each command lives in a module of its name and is imported when it is called."""

from __future__ import annotations

import importlib
import signal
import sys
from types import FrameType

import click
import typer
import typer.main
from pydantic import ValidationError

from drumline.infra.config.unknown_variables import InvalidVariables
from drumline.infra.runtime.version import drumline_version

#: name -> (module, what it does). The order is the order of `drumline --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("stack.up", "Start the local stack: Apache Kafka and the ClickHouse engine."),
    "down": ("stack.down", "Stop the local stack; data stays."),
    "status": ("stack.status", "Show what runs, where, and how much it uses."),
    "topics": ("operate.topics", "Create, check and read the Kafka topics."),
    "migrate": ("operate.migrate", "Bring the ClickHouse schema up to date."),
    "roles": ("operate.roles", "Make the roles, limits and quotas of a ClickHouse server."),
    "replay": ("record.replay", "Publish a recorded GPU job."),
    "agent": ("record.agent", "Publish what GPU processes of this host left in the spool."),
    "run": ("record.run", "Run a command and collect what its GPU processes do."),
    "doctor": ("record.doctor", "Check what recording and publishing need on this host."),
    "stream": ("operate.stream", "Run a stream worker: rolling windows and straggler verdicts."),
    "sink": ("operate.sink", "Write topics to ClickHouse, exactly once."),
    "audit": ("operate.audit", "Prove that nothing was lost or doubled."),
    "dlq": ("operate.dlq", "Dead letters: count them, show why, put them back."),
    "sql": ("query.sql", "Ask ClickHouse, read-only."),
    "report": ("query.report", "Write a page about a job: who held it back, why, what it cost."),
    "top": ("query.top", "Watch the jobs: ranks, step times, lateness, verdicts."),
    "grafana": ("operate.grafana", "Dashboards and alert rules: write, apply, compare, fetch."),
    "evaluate": ("query.evaluate", "Judge the straggler verdicts over a recorded job with known faults."),
    "demo": ("stack.demo", "Run a recorded job through the whole platform and check what comes out."),
    "bench": ("develop.bench", "Measure speed and memory on recorded data, beside baselines."),
    "chaos": ("develop.chaos", "Kill programs under load and prove that nothing was lost."),
    "config": ("operate.config", "Print the settings in force (secrets hidden)."),
}


class TyperCommand(click.Command):
    """Hands everything after the command's name to typer, which brings a click of its own: its exits and usage errors
    are not click's, so only its own `main` turns them into exit codes."""

    def __init__(self, name: str, app: typer.Typer) -> None:
        super().__init__(name)
        self._app = app

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> None:
        interrupted: list[int] = []

        def interrupt(number: int, frame: FrameType | None) -> None:
            interrupted.append(number)
            signal.default_int_handler(number, frame)

        before = signal.getsignal(signal.SIGINT)
        if before in (signal.SIG_DFL, signal.default_int_handler):  # SIG_DFL: main.py
            signal.signal(signal.SIGINT, interrupt)
        try:
            typer.main.get_command(self._app).main(args=ctx.args, prog_name=ctx.command_path)
        except KeyboardInterrupt:  # before typer is ready for it: click would say "Aborted!" and exit with 1
            sys.exit(130)
        except Exception:
            if not interrupted:
                raise
            sys.exit(130)  # confluent_kafka answers a Ctrl-C in the middle of its C code with a TypeError of its own
        finally:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: not Python's


class LazyCommands(click.Group):
    """A group whose commands are imported on use, so that `drumline sql` does not load Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"drumline.infra.cli.{COMMANDS[cmd_name][0]}")
        return TyperCommand(cmd_name, module.app)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"drumline {drumline_version()}")
        context.exit()


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def root() -> None:
    """drumline: which rank holds the job back, why, and what it costs.

    Settings come from the environment (drumline...); `drumline config` prints them.
    """


def main() -> None:
    """Console entry point. Settings that do not validate end with exit code 2 and the field's name."""
    try:
        root(standalone_mode=True)
    except InvalidVariables as error:
        for text in str(error).splitlines():
            print(f"drumline: {text}", file=sys.stderr)
        sys.exit(2)
    except ValidationError as error:
        for problem in error.errors():
            name = "DRUMLINE_" + "__".join(str(part) for part in problem["loc"]).upper()
            unknown = problem["type"] == "extra_forbidden"
            text = "no such setting; `drumline config` prints all there are" if unknown else problem["msg"]
            said = text.removeprefix("Value error, ")
            print(f"drumline: {said if said != text else f'{name}: {said}'}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = error.name if error.name and "[" in error.name else "drumline[all]"
        print(f"drumline: {error}; install the extra that has it: pip install '{extra}'", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
