"""What a rank that stands still says of itself: the lines it is in, and what its recorder holds.

Nothing of it waits for the training's threads or for other ranks. Of a stack only functions, files
and lines are taken, never values; of the recorder only what is pending, and the numbers reached.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, Final

import torch

_log = logging.getLogger("paceline_client")

# The innermost ones of a stack.
MOST_FRAMES: Final = 40
MOST_BYTES: Final = 64 << 10
# A wait for others stands at the front; of what is enqueued behind it not all is needed.
_FEW_ENTRIES: Final = 16


def training_stack(thread: int) -> bytes:
    """Return the stack of a thread of this process, in the shape that ``py-spy dump --json`` has.

    Examples
    --------
    >>> import threading
    >>> (told,) = json.loads(training_stack(threading.get_ident()))
    >>> told["frames"][0]["name"], told["thread_name"]
    ('training_stack', 'MainThread')
    """
    frames: list[dict[str, Any]] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and len(frames) < MOST_FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append({"name": name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    told = {"pid": os.getpid(), "thread_name": "MainThread", "frames": frames}
    return json.dumps([told], separators=(",", ":")).encode()


def pending_collectives() -> bytes | None:
    """Return what PyTorch's flight recorder holds as pending, as JSON; None where it has none.

    Of NCCL or of any other backend, whichever is there.
    """
    known = torch._C._distributed_c10d
    dump = getattr(known, "_dump_nccl_trace_json", None) if torch.cuda.is_available() else None
    dump = dump or getattr(known, "_dump_fr_trace_json", None)
    if dump is None:
        return None
    try:
        told = json.loads(dump(includeCollectives=True, onlyActive=False))
    except (RuntimeError, ValueError) as error:
        _log.debug("the flight recorder says nothing: %s", error)
        return None
    entries = told.get("entries", [])
    pending = [one for one in entries if not one.get("retired")]
    # Entries alone say how the group is called whose numbers the recorder knows.
    over = list({one.get("pg_id"): one for one in entries if one.get("retired")}.values())
    for count in (len(pending), _FEW_ENTRIES, 1):
        kept = over + pending[:count]
        body = json.dumps({**told, "entries": kept}, separators=(",", ":")).encode()
        if len(body) <= MOST_BYTES:
            return body
    return None
