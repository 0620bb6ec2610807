"""Stacks of a rank's threads, as `py-spy dump --json` prints them; of variables nothing is read."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.analysis.hangs.state import Frame
from app.errors import Fault, InvalidTraceError

# Frames of a stack that are kept, the innermost ones.
MOST_FRAMES: Final = 40
_MAIN: Final = "MainThread"
_INVALID: Final = "hang.invalid_stack"


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Frame(_Written):
    name: str
    filename: str
    short_filename: str | None = None
    line: int


class _Thread(_Written):
    pid: int | None = None
    os_thread_id: int | None = None
    # null where the program does not import threading
    thread_name: str | None = None
    owns_gil: bool = False
    frames: tuple[_Frame, ...] = Field(max_length=1 << 16)

    @property
    def is_main(self) -> bool:
        """Return whether it is the main one: Linux numbers that as its process."""
        is_first = self.pid is not None and self.os_thread_id == self.pid
        return self.thread_name == _MAIN or is_first


_THREADS: Final = TypeAdapter(tuple[_Thread, ...])


def stack_of(body: bytes) -> tuple[Frame, ...]:
    """Return what the thread that trains does, the innermost frame first.

    That is the main one; where none is called so, the one that holds the interpreter's lock.

    Raises
    ------
    InvalidTraceError
        It is no dump of py-spy.
    """
    try:
        threads = _THREADS.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the dump"
        message = f"It is no dump of py-spy: {place}: {first['msg']}"
        raise InvalidTraceError(
            message, code=_INVALID, faults=(Fault(_INVALID, message),)
        ) from error
    if not threads:
        return ()
    training = max(threads, key=lambda one: (one.is_main, one.owns_gil))
    return tuple(
        Frame(one.name, one.short_filename or one.filename, one.line)
        for one in training.frames[:MOST_FRAMES]
    )
