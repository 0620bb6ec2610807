"""`paceline connect`: print the lines that connect a job, and try the server."""

from __future__ import annotations

import json
import sys
from typing import Final

import typer
from rich.console import Console

from app.analysis.trace.formats.own import NDJSON
from app.cli.server import Body, Server
from app.errors import PacelineError
from app.jobs.connect import LAUNCHERS, WAYS, Target

# Two stages, and the smallest number of steps for which a verdict is given.
STEPS: Final = 8
_STAGES: Final = 2
_MS: Final = 1_000_000


class MissingChoiceError(PacelineError):
    """A choice is missing, and there is no terminal to prompt for it."""

    code = "connect.incomplete"


def connect(
    server: str, job: str | None, framework: str | None, launcher: str | None, *, send: bool
) -> None:
    """Print the lines that connect a job; check the server with a tiny session of another job."""
    chosen = _chosen("framework", framework, tuple(WAYS))
    way = WAYS[chosen]
    starts = LAUNCHERS[_chosen("launcher", launcher, tuple(LAUNCHERS))] if way.in_job else None
    target = Target(server, job or _prompted("Name of the job"))
    console = Console(stderr=True)
    blocks = [*way.blocks(target), *([] if starts is None else [starts.block])]
    sys.stdout.write("\n\n".join(blocks) + "\n")
    console.print(way.prose, highlight=False, soft_wrap=True)
    if not send:
        return
    with Server(server) as api:
        api.get("/healthz")
        console.print(f"{server} answers", highlight=False, soft_wrap=True)
        name = f"{target.job}-connect"
        sent = api.send(
            name, lambda: Body(tiny_session(), NDJSON.media_types[0]), None, console.print
        )
    console.print(f"It took a tiny session of the job {name}:", highlight=False, soft_wrap=True)
    sys.stdout.write(f"\n{sent.url}\n")


def tiny_session() -> bytes:
    """Return a session of two stages as NDJSON; all steps are equal and nothing is slow."""
    lines: list[object] = [
        {"schema": "paceline.trace/1", "meta": {"dp": 1, "pp": _STAGES, "world": _STAGES}}
    ]
    for step in range(STEPS):
        for stage in range(_STAGES):
            last = stage == _STAGES - 1
            begin = (100 * step + (0 if stage == 0 else 11)) * _MS
            back = (100 * step + (21 if last else 42)) * _MS
            link = (100 * step + 10) * _MS, (100 * step + 41) * _MS
            forward, backward = ("recv", "send") if last else ("send", "recv")
            for op, start, ms in (
                ("forward-compute", begin, 10),
                (f"forward-{forward}", link[0], 1),
                ("backward-compute", back, 20),
                (f"backward-{backward}", link[1], 1),
                ("optimizer", (100 * step + 62) * _MS, 5),
            ):
                operation = {"rank": stage, "dp": 0, "pp": stage, "step": step, "op": op}
                lines.append({**operation, "start_ns": start, "dur_ns": ms * _MS})
    return "\n".join(json.dumps(line) for line in lines).encode()


def _chosen(what: str, given: str | None, names: tuple[str, ...]) -> str:
    if given is not None:
        if given not in names:
            raise typer.BadParameter(f"--{what} is one of {', '.join(names)}")
        return given
    while True:
        answer = _prompted(f"{what.capitalize()} ({', '.join(names)})", what)
        if answer in names:
            return answer


def _prompted(question: str, option: str = "job") -> str:
    if not sys.stdin.isatty():
        raise MissingChoiceError(f"give --{option}: there is no terminal to ask for it")
    answer: str = typer.prompt(question, err=True)
    return answer.strip()
