"""Commands that plan, without any server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.commands.options import MetaOption

app = typer.Typer()


class Method(StrEnum):
    """How `paceline plan` finds a template."""

    OPTIMAL = "optimal"
    DITTO = "ditto"
    GREEDY = "greedy"
    EXHAUSTIVE = "exhaustive"


class Objective(StrEnum):
    """What `paceline plan` makes small."""

    SIMULATED = "simulated"
    T_STD = "t_std"
    T_OOBLECK = "t_oobleck"


@app.command()
def plan(
    spec: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML or JSON"),
    ] = None,
    *,
    session: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            readable=True,
            help="In place of a specification: a trace, whose whole job is planned as measured",
        ),
    ] = None,
    meta: MetaOption = None,
    method: Annotated[Method, typer.Option(help="How the template is found")] = Method.OPTIMAL,
    objective: Annotated[
        Objective, typer.Option(help="What is made small: the executed time, or an estimate of it")
    ] = Objective.SIMULATED,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds; then the best so far with its proven gap"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON")] = False,
) -> None:
    """Recommend a pipeline template for a cluster, without any server.

    With --session, plan the whole job of a trace whose metadata say its model, batch and nodes, and
    hold the plan against the job as it runs.
    """
    if (spec is None) == (session is None):
        raise typer.BadParameter("give a specification or --session, one of them")
    if session is not None:
        if (method, objective) != (Method.OPTIMAL, Objective.SIMULATED):
            raise typer.BadParameter("a whole job is planned by optimal, simulated")
        from app.cli.plans.session import plan_trace

        plan_trace(session, meta, time_limit, as_json=json)
        return
    assert spec is not None  # noqa: S101 - see above
    from app.cli.plans.plan import plan_file

    plan_file(spec, method.value, objective.value, time_limit, as_json=json)


@app.command()
def mitigate(
    spec: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML or JSON")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole advice as JSON")] = False,
) -> None:
    """Plan the work of a tensor-parallel group with stragglers, without any server."""
    from app.cli.mitigate import mitigate_file

    mitigate_file(spec, as_json=json)
