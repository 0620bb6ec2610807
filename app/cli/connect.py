"""`paceline connect`: print the lines that connect a job, and try the server."""

from __future__ import annotations

import json
import sys
from typing import Final

import typer
from rich.console import Console

from app.analysis.trace.formats.own import NDJSON
from app.cli.server import Body, Server, ServerError
from app.errors import JOB_FORBIDDEN, ForbiddenError, PacelineError
from app.jobs.connect import LAUNCHERS, NO_SECRET, WAYS, Target
from app.platform.database.projects import DEFAULT_PROJECT
from app.platform.identity import MAX_NAME_CHARACTERS, Right
from app.platform.settings.kinds import Caller

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
    """Print the lines that connect a job; check the server with a tiny session of another job.

    An administrator's token (`PACELINE_TOKEN`) creates a token for this job, which the lines hold.
    """
    chosen = _chosen("framework", framework, tuple(WAYS))
    way = WAYS[chosen]
    starts = LAUNCHERS[_chosen("launcher", launcher, tuple(LAUNCHERS))] if way.in_job else None
    target = Target(server, job or _prompted("Name of the job"))
    console = Console(stderr=True)
    with Server(server) as api:
        secret, reason = _secret(api, target) if send and starts is not None else (NO_SECRET, "")
        blocks = [*way.blocks(target), *([] if starts is None else [starts.block(target, secret)])]
        sys.stdout.write("\n\n".join(blocks) + "\n")
        for sentence in filter(None, (way.prose, reason)):
            console.print(sentence, highlight=False, soft_wrap=True)
        if not send:
            return
        api.get("/healthz")
        console.print(f"{server} answers", highlight=False, soft_wrap=True)
        name = f"{target.job}-connect"
        try:
            sent = api.send(
                name, lambda: Body(tiny_session(), NDJSON.media_types[0]), None, console.print
            )
        except ServerError as error:
            if error.stable_code != JOB_FORBIDDEN:
                raise
            console.print(f"No session was sent: {error.message}", highlight=False, soft_wrap=True)
            return
    console.print(f"It took a tiny session of the job {name}:", highlight=False, soft_wrap=True)
    sys.stdout.write(f"\n{sent.url}\n")


def _secret(api: Server, target: Target) -> tuple[str, str]:
    """Return the secret of a new token for the job, and a sentence about it.

    Without a new token the secret is `NO_SECRET`.
    """
    caller = Caller.of_environment()
    if caller.token is None:
        return NO_SECRET, ""
    wanted = {
        "name": target.job[:MAX_NAME_CHARACTERS],
        "scopes": [Right.INGEST],
        "project": caller.project or DEFAULT_PROJECT,
        "jobs": [target.job],
    }
    try:
        made = api.exchange("POST", "/api/v1/tokens", wanted)
    except ServerError as error:
        if error.stable_code == ForbiddenError.code:
            return NO_SECRET, f"An administrator creates its token: {target.token_command}"
        return NO_SECRET, f"No token was created: {error.message}"
    secret: str = made["secret"]
    return secret, f"PACELINE_TOKEN is a new token for the job {target.job} only, shown this once."


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
