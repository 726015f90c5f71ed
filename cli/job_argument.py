"""The job's name as the first argument of every command about one job, beside `--job`; and what a command still needs.

So `drumline report demo` and `drumline report --job demo` are one command. Each module declares `--job` only.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.main

_PLACE = "job_by_place"
_app = typer.Typer(add_completion=False)


@_app.command()
def _command(
    job_by_place: Annotated[str, typer.Argument(metavar="JOB", help="The same as --job.", show_default=False)] = "",
) -> None:
    """Declare the argument, as typer makes one."""


def with_job_argument(command: Any) -> Any:
    """Let a typer command, or those of a group, take the job by place, and say what to give. Return the command.

    The argument comes where a command has `--job` and no argument; so its usage, help and completion have it.
    """
    for child in getattr(command, "commands", {}).values():
        with_job_argument(child)
    option = next((parameter for parameter in command.params if parameter.name == "job"), None)
    takes_place = option is not None and all(p.param_type_name == "option" for p in command.params)
    takes_place = takes_place and not getattr(command, "commands", {})
    is_needed = takes_place and bool(option.required)  # type: ignore[union-attr]  # None takes no place
    if takes_place and option is not None:
        command.params.insert(0, typer.main.get_command(_app).params[0])
        option.required = False
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> list[str]:
        try:
            rest: list[str] = parse(ctx, args)
        except typer.BadParameter as error:
            if type(error).__name__ != "MissingParameter":
                raise
            ctx.fail(_wanted(error))
        if not takes_place or ctx.resilient_parsing:
            return rest
        by_place, by_option = ctx.params.pop(_PLACE, ""), ctx.params.get("job")
        if by_place and by_option and by_place != by_option:
            ctx.fail(f"two jobs are named: {by_place} and --job {by_option}")
        if by_place:
            ctx.params["job"] = by_place
        elif is_needed and not by_option:
            ctx.fail(f"name the job: {ctx.command_path} JOB; `drumline sql jobs` lists them")
        return rest

    command.parse_args = parse_args
    return command


def _wanted(error: Any) -> str:
    """Return what to give, with the meaning that the parameter's help has."""
    parameter = error.param
    if parameter is None:
        return str(error.format_message())
    name = parameter.opts[0] if parameter.param_type_name == "option" else ""
    value = (parameter.metavar or (parameter.name or "").upper()).strip("[]{}")
    meaning = (getattr(parameter, "help", "") or "").rstrip(".")
    return f"give {' '.join(filter(None, (name, value)))}" + (f": {meaning}" if meaning else "")
