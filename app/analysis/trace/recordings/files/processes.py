"""Files in which the recordings of several ranks were put together, each as processes of its own.

Scripts that merge the files of ranks for a viewer put the rank into the number of a process
(``[Rank 3] 4711``, ``4711_rank3``) or into its name (``process_name``, ``process_labels``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.recordings.files.names import rank_in
from app.analysis.trace.recordings.values import Event

# A viewer shows some dozens; a machine has thousands.
_MOST: Final = 100_000
_NAMES: Final = ("process_name", "process_labels")
_FIRST: Final = re.compile(r"\[(?:R|rank)?[ =]?([0-9]{1,7})\]", re.IGNORECASE)


@dataclass(slots=True)
class Processes:
    """What a recording says about its processes."""

    # Those that take steps of training, in the order of the recording.
    stepping: dict[object, None] = field(default_factory=dict)
    _rank_of: dict[object, int] = field(default_factory=dict)

    def name(self, event: Event) -> None:
        """Take an event of metadata (``"ph": "M"``)."""
        if event.fields.get("name") not in _NAMES or len(self._rank_of) >= _MOST:
            return
        args = event.args.fields
        said = _rank_said(str(args.get("name", args.get("labels", ""))))
        if said is not None:
            self._rank_of.setdefault(_key(event), said)

    def step(self, event: Event) -> None:
        """Take a range that is a step of training."""
        if len(self.stepping) < _MOST:
            self.stepping.setdefault(_key(event))

    def rank_of(self, event: Event) -> int | None:
        """Return the rank that an event is of, None where nothing says it."""
        key = _key(event)
        if key not in self._rank_of and isinstance(key, str):
            said = _rank_said(key)
            if said is not None and len(self._rank_of) < _MOST:
                self._rank_of[key] = said
        return self._rank_of.get(key)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the processes that take steps.

        Raises
        ------
        InvalidTraceError
            `trace.several_ranks`: one does not say its rank, or two say the same.
        """
        found = [self.rank_of(Event(0, {"pid": key})) for key in self.stepping]
        ranks = sorted({rank for rank in found if rank is not None})
        if len(ranks) < len(found):
            refuse_body(
                "several_ranks",
                f"{len(found)} processes take steps, and their numbers or names do not say which "
                "rank each is: send the file of each rank as the profiler wrote it",
            )
        return tuple(ranks)


def _key(event: Event) -> object:
    process = event.fields.get("pid")
    return process if isinstance(process, int | str) else str(process)


def _rank_said(text: str) -> int | None:
    said = rank_in(text)
    if said is None and (found := _FIRST.search(text)) is not None:
        return int(found[1])
    return said
