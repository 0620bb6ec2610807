"""What a job says at its start: where it is recorded and when, and at once what is wrong."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from paceline_client.delivery import DeliveryError, attempt_number
from paceline_client.torch.tap import GRADIENTS, PARAMETERS
from paceline_client.torch.targets.kind import Level

if TYPE_CHECKING:
    from collections.abc import Collection

    from paceline_client.torch.sampling import Window
    from paceline_client.torch.session import Sender

_log = logging.getLogger("paceline_client")

_MINUTE_S: Final = 60.0
# Without any of these, waiting for others looks like computing.
_COLLECTIVES: Final = frozenset({PARAMETERS, GRADIENTS})
_NO_COLLECTIVES: Final = (
    "no data-parallel collective was seen in steps {first} to {last}, so that waiting cannot be "
    "told from computing: pass the wrapped model to attach(model=…), or the process group of the "
    'data-parallel ranks as attach(groups={{"dp": group}})'
)


def say(line: str) -> None:
    """Print a line where a job's own output goes, whatever its logging shows."""
    print(f"paceline: {line}", file=sys.stderr, flush=True)  # noqa: T201 - one line a job


def miss_collectives(sender: Sender, window: Window, recorded: Collection[str]) -> None:
    """Say so where data-parallel ranks are seen to exchange nothing; on rank 0."""
    exchanges = sender.layout.dp > 1 and sender.level >= Level.P2P
    if sender.rank == 0 and exchanges and _COLLECTIVES.isdisjoint(recorded):
        say(_NO_COLLECTIVES.format(first=window.start, last=window.end - 1))


def greet(sender: Sender, window: Window, every_s: float | None) -> None:
    """Say which steps are recorded, and whether the server takes them; on rank 0.

    The server is asked on a thread of its own.
    """
    then = "on request" if every_s is None else f"every {_span(every_s)}"
    say(
        f"attached to job {sender.job}: records steps {window.start} to {window.end - 1}, then "
        f"{then}; {sender.page}"
    )
    threading.Thread(target=_ask, args=(sender,), name="paceline-greeting", daemon=True).start()


def _ask(sender: Sender) -> None:
    once = replace(sender.retry, give_up_after_s=0.0)
    try:
        attempt_number(sender.server, sender.job, sender.run, once)
    except DeliveryError as error:
        kept = "they are sent once it answers" if not error.permanent else "correct that"
        say(f"recordings wait in {sender.spool.directory}, {kept}: {error}")
    except Exception:  # noqa: BLE001 - the training continues
        _log.debug("the server was not asked", exc_info=True)


def _span(seconds: float) -> str:
    if seconds >= _MINUTE_S and seconds % _MINUTE_S == 0:
        return f"{seconds / _MINUTE_S:g} min"
    return f"{seconds:g} s"
