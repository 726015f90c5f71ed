"""The `drumline` command: its groups of commands, and the exit codes of errors that no command handles.

Each command is a module of its name, imported when it is called.
"""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from types import FrameType
from typing import Any

import click
import typer
import typer.main
from click.shell_completion import CompletionItem
from pydantic import ValidationError

from drumline.cli.job_argument import with_job_argument
from drumline.cli.usage_errors import run
from drumline.infra.config.unknown_variables import InvalidVariables
from drumline.infra.runtime.exit_codes import BAD_INPUT, INTERRUPTED
from drumline.infra.runtime.extras import extra_of
from drumline.infra.runtime.nearest import did_you_mean
from drumline.infra.runtime.terminal import echo
from drumline.infra.runtime.version import drumline_version

#: (heading, folder of the modules, name of the command -> text), in the order of `drumline --help`.
GROUPS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Run it: the whole platform on this machine", "stack", {
        "up": "Start the whole platform: Kafka, ClickHouse, drumline's programs, web page.",
        "down": "Stop all of it; data stays.",
        "status": "Show which processes run, their addresses and their memory.",
        "uninstall": "Remove what is left on this machine; ask first.",
        "demo": "Run a recorded job through the whole platform; check the result.",
    }),
    ("Record: GPU work of training jobs, into Kafka", "record", {
        "run": "Run a command and record its GPU processes.",
        "hook": "Let jobs be recorded that are not started with `drumline run`.",
        "agent": "Publish the spool of this host's GPU processes to Kafka.",
        "doctor": "Check the requirements of recording and publishing on this host.",
        "check": "Check the health of this host's GPUs.",
        "import": "Make a recording of traces that other tools recorded.",
        "replay": "Publish a recorded GPU job.",
    }),
    ("Ask: what happened, why, and what it cost", "query", {
        "top": "Watch running jobs: ranks, step times, lateness, verdicts.",
        "explain": "Explain who held a job back, and what to do.",
        "serve": "Serve the web page: jobs, ranks, causes, questions.",
        "report": "Write an HTML page about a job: stragglers, causes, cost.",
        "capture": "Record a running job in depth for some steps; wait for the rows.",
        "pull": "Publish rows of some steps that stayed on their hosts.",
        "timeline": "Write steps of a job, all ranks aligned, as a Perfetto trace.",
        "export": "Write the tables of a job as Parquet or Arrow files.",
        "flamegraph": "Write GPU time by Python stack, for speedscope.",
        "sql": "Query ClickHouse, read-only, with SQL or a named query.",
        "mcp": "Serve agents over the Model Context Protocol, read-only.",
        "verdict": "Print who held a recorded job back, from files alone.",
        "evaluate": "Score the straggler verdicts of a recording with known faults.",
    }),
    ("Operate: topics, tables and the programs between them", "operate", {
        "setup": "Prepare Kafka and ClickHouse: topics, tables, roles.",
        "topics": "Create, check and read the Kafka topics.",
        "migrate": "Bring the ClickHouse schema up to date.",
        "roles": "Create the roles, limits and quotas of a ClickHouse server.",
        "stream": "Run a stream worker: rolling windows and straggler verdicts.",
        "sink": "Write topics to ClickHouse, exactly once.",
        "audit": "Prove that no row was lost or doubled.",
        "forget": "Delete all data of one job.",
        "backup": "Back the database up, and restore it.",
        "backfill": "Copy to a replica what Kafka has no more.",
        "cluster": "Make one database over all servers of a ClickHouse cluster.",
        "dlq": "Count, show and replay dead letters.",
        "policy": "Set what processes record, from one place, for a time.",
        "limits": "Give some jobs limits of their own in alert rules.",
        "exporter": "Serve verdicts to Prometheus; send them by OTLP, and to NVSentinel.",
        "notify": "Post to a webhook which hosts are at fault again.",
        "grafana": "Write, apply, compare and fetch dashboards and alert rules.",
        "config": "Print the settings in force, without secrets.",
        "completion": "Print the script that completes commands in your shell.",
    }),
    ("Develop: measure and test drumline itself", "develop", {
        "bench": "Measure speed and memory on recorded data, beside baselines.",
        "chaos": "Kill programs under load and prove that no row was lost.",
    }),
)  # fmt: skip
#: Commands that `drumline --help` shows: what people type first. `drumline --help --all` shows all.
FIRST = frozenset(
    {
        *("up", "down", "status", "uninstall", "demo", "run", "agent", "doctor", "import", "top", "explain", "serve"),
        *("report", "capture", "timeline", "export", "sql", "verdict", "setup", "stream", "sink", "audit"),
        *("policy", "grafana"),
    }
)
#: Commands whose names Python reserves -> the names of their modules.
_RESERVED = {"import": "import_traces"}
#: In a context: whether all commands are to be shown.
_EVERY_COMMAND = "drumline.all"
#: Name of the command -> its module below cli/.
MODULES = {name: f"{folder}.{_RESERVED.get(name, name)}" for _, folder, commands in GROUPS for name in commands}

#: What people type who know other tools -> what to type here.
KNOWN_ELSEWHERE = {
    "start": "up", "stop": "down", "ps": "status", "jobs": "sql jobs", "list": "sql jobs", "ls": "sql jobs",
    "query": "sql", "web": "serve", "ui": "serve", "record": "run", "profile": "capture", "version": "--version",
    "help": "--help",
}  # fmt: skip


class TyperCommand(click.Command):
    """Passes all arguments after the command's name to a typer app.

    Typer brings a click of its own. Its exits and usage errors are not click's: usage_errors.py makes codes of them.
    """

    def __init__(self, name: str, app: typer.Typer) -> None:
        super().__init__(name)
        self._app = app

    def _command(self) -> Any:
        return with_job_argument(typer.main.get_command(self._app))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave all arguments to typer."""
        ctx.args = list(args)
        return ctx.args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow in a shell; click knows of no arguments."""
        from drumline.cli.completions import complete

        names = complete((self.name or "",), self._command(), ctx.args, incomplete)
        return [CompletionItem(name) for name in names]

    def invoke(self, ctx: click.Context) -> None:
        """Run the typer command; end with INTERRUPTED on Ctrl-C."""
        ctrl_c: list[int] = []

        def interrupt(number: int, frame: FrameType | None) -> None:
            ctrl_c.append(number)
            signal.default_int_handler(number, frame)

        before = signal.getsignal(signal.SIGINT)
        if before in (signal.SIG_DFL, signal.default_int_handler):  # SIG_DFL: main.py
            signal.signal(signal.SIGINT, interrupt)
        try:
            code = run(_for_terminals(self._command()), ctx.args, ctx.command_path)
        except KeyboardInterrupt:  # before typer is ready for it: click would print "Aborted!" and exit with 1
            sys.exit(INTERRUPTED)
        except Exception:
            if not ctrl_c:
                raise
            sys.exit(
                INTERRUPTED
            )  # confluent_kafka answers a Ctrl-C in the middle of its C code with a TypeError of its own
        finally:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: not Python's
        sys.exit(code)


def _for_terminals(command: Any) -> Any:
    """Let the command and its subcommands take -h too, and their help fill the lines. typer's commands are
    not click's.
    """
    command.context_settings = {**command.context_settings, "help_option_names": ["-h", "--help"]}
    command.help = _flowing(command.help or "")
    for child in getattr(command, "commands", {}).values():
        _for_terminals(child)
    return command


def _flowing(text: str) -> str:
    """Return paragraphs without the line breaks of the source; a paragraph that begins with \\b keeps its own."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split("\n")) for part in paragraphs)


def _instead(name: str) -> str:
    """Return a hint for a word that is a command elsewhere, or a question of `drumline sql`; "" = neither."""
    if command := KNOWN_ELSEWHERE.get(name):
        return f"type: drumline {command}"
    from drumline.infra.clickhouse.queries import queries

    return f"it is a question: drumline sql {name}" if name in queries() else ""


class LazyCommands(click.Group):
    """Imports a command when it is called, so that `drumline sql` does not load Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command; None for an unknown name."""
        if cmd_name not in MODULES:
            return None
        module = importlib.import_module(f"drumline.cli.{MODULES[cmd_name]}")
        return TyperCommand(cmd_name, module.app)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises UsageError with the commands that are spelt alike."""
        name = args[0]
        if name not in MODULES and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, MODULES, n=2, cutoff=0.6)
            hint = did_you_mean(close) or "`drumline --help` lists the commands"
            raise click.UsageError(f"no command {name!r}; {_instead(name) or hint}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note --all before --help ends the parsing."""
        ctx.meta[_EVERY_COMMAND] = (
            "--all" in args[: next((i for i, arg in enumerate(args) if arg in MODULES), len(args))]
        )
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups: those that people type first, or all."""
        everything = ctx.meta.get(_EVERY_COMMAND, False)
        for heading, _, commands in GROUPS:
            shown = [(f"{name:<8}", text) for name, text in commands.items() if everything or name in FIRST]
            if shown:
                with formatter.section(heading):
                    formatter.write_dl(shown)
        if not everything:
            formatter.write_text(f"{len(MODULES) - len(FIRST)} more: drumline --help --all")


def _version(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set and not context.resilient_parsing:
        click.echo(f"drumline {drumline_version()}")
        context.exit()


def _need_help(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set and not context.resilient_parsing:
        click.echo(context.get_help())
        context.exit()


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.option(
    "--all", is_flag=True, is_eager=True, expose_value=False, callback=_need_help, help="With --help: all commands."
)
def root() -> None:
    """Find the GPU rank that slows a distributed training job: which one, why, and what it costs.

    Settings come from environment variables (DRUMLINE_...); `drumline config` prints them. `drumline COMMAND --help`
    explains a command.
    """


def main() -> None:
    """Run the command line. Invalid settings end it with BAD_INPUT and the setting's name."""
    try:
        root(standalone_mode=True)
    except InvalidVariables as error:
        for text in str(error).splitlines():
            echo(f"drumline: {text}", err=True)
        sys.exit(BAD_INPUT)
    except ValidationError as error:
        for problem in error.errors():
            name = "DRUMLINE_" + "__".join(str(part) for part in problem["loc"]).upper()
            unknown = problem["type"] == "extra_forbidden"
            text = "no such setting; `drumline config` prints all there are" if unknown else problem["msg"]
            message = text.removeprefix("Value error, ")  # of a validator, which names its settings itself
            echo(f"drumline: {message if message != text else f'{name}: {message}'}", err=True)
        sys.exit(BAD_INPUT)
    except ModuleNotFoundError as error:
        name = error.name or ""
        command = next((text for text in sys.argv[1:] if text in MODULES), "")
        extra = name if "[" in name else f"drumline[{extra_of(name, command)}]"
        echo(f"drumline: {error}; install the extra that has it: pip install '{extra}'", err=True)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
