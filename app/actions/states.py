"""Where actions stand, and what a project's policy lets them do.

Sets are tuples, as SQL's IN takes.
"""

from __future__ import annotations

from enum import StrEnum, nonmember


class ActionMode(StrEnum):
    """What a policy lets happen by itself."""

    OFF = "off"
    DRY_RUN = "dry_run"  # it is written down what would have been done
    ASK = "ask"  # a person says yes to each
    AUTOMATIC = "automatic"  # within every limit

    # What was ordered is done, and a person may order it.
    ACTING = nonmember((ASK, AUTOMATIC))


class ActionState(StrEnum):
    """Where an action stands."""

    DRY_RUN = "dry_run"  # what would have been done
    ASKED = "asked"  # waits for a person
    HELD = "held"  # a limit forbids it; a person may allow it where the limit lets them
    WAITING = "waiting"  # is being done
    DONE = "done"
    FAILED = "failed"  # given up
    DECLINED = "declined"  # a person said no
    WITHDRAWN = "withdrawn"  # its reason ended before anything was done
    RELEASING = "releasing"  # is being undone
    RELEASED = "released"

    # Nothing was done yet: looked at again as long as its incident lasts.
    UNDECIDED = nonmember((DRY_RUN, ASKED, HELD))
    # A worker has something to do.
    UNDERWAY = nonmember((WAITING, RELEASING))
    # The machine is out, or about to be.
    OUT = nonmember((WAITING, DONE, RELEASING))
    # Of a machine at most one of each kind.
    OPEN = nonmember((DRY_RUN, ASKED, HELD, WAITING, DONE, RELEASING))
    # A person may say yes.
    ALLOWABLE = nonmember((ASKED, HELD, FAILED))
    DECLINABLE = nonmember((ASKED, HELD))
