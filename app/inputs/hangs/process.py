"""What a host says of the process of a rank that says nothing itself, as the client writes it."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.analysis.hangs.state import Process
from app.errors import InvalidTraceError

_BEGINS: Final = b'{"process":'
_INVALID: Final = "hang.invalid_process"


class _Process(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: int
    state: Annotated[str, Field(max_length=1)]
    wait_channel: Annotated[str, Field(max_length=64)] = ""


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    process: _Process


def is_process(body: bytes) -> bool:
    """Return whether a body is one of these."""
    return body.startswith(_BEGINS)


def read_process(body: bytes) -> Process:
    """Return what a body says.

    Raises
    ------
    InvalidTraceError
        It is no such document.
    """
    try:
        known = _Document.model_validate_json(body).process
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise InvalidTraceError(
            f"It says nothing of a process: {place}: {first['msg']}", code=_INVALID
        ) from error
    return Process(known.pid, known.state, known.wait_channel)
