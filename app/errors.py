"""Domain errors with stable codes.

A code is part of the public contract: clients, tests and runbooks match on it, so it never changes
its meaning. Nothing here knows of HTTP; `app/web/problems.py` maps codes to statuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in an input and where it is."""

    code: str
    """Stable, machine-readable, snake case: ``rank_out_of_range``."""
    message: str
    """One sentence for a person."""
    row: int | None = None
    """0-based row of a columnar body, or event of a recording; 1-based line of a text body."""
    line: int | None = None
    """0-based row of a columnar body, or event of a recording; 1-based line of a text body."""
    column: str | None = None
    """Name of the column or key."""
    file: str | None = None
    """Path within the folder or archive that was sent."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fault without the positions that it does not have."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class PacelineError(Exception):
    """Base of every error that Paceline raises on purpose.

    Parameters
    ----------
    message : str
        One sentence for a person.
    code : str, optional
        Overrides the class's code where one class covers several.
    faults : tuple of Fault, optional
        The first faults with their positions.
    """

    code: ClassVar[str] = "internal"

    def __init__(
        self, message: str, *, code: str | None = None, faults: tuple[Fault, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stable_code = code or self.code
        self.faults = faults


def lines_of(error: PacelineError) -> Iterator[str]:
    """Yield an error as a program writes it: a line of its own, then one a fault.

    A fault that the first line says already has no line of its own: its place stands in the first.
    """
    message, faults = error.message, error.faults
    if faults and faults[0].message in message:
        first, faults = faults[0], faults[1:]
        if not message.endswith(first.message):
            short = Fault(first.code, first.message, row=first.row, line=first.line)
            message = message.removesuffix(_where(short))
        message += _where(first)
        if not error.stable_code.endswith(f".{first.code}"):
            message += f" [{first.code}]"
    yield f"paceline: {message} [{error.stable_code}]\n"
    for fault in faults:
        yield f"  {fault.message}{_where(fault)} [{fault.code}]\n"


def _where(fault: Fault) -> str:
    place = [
        f"{name} {value}"
        for name in ("file", "line", "row", "column")
        for value in [getattr(fault, name)]
        if value is not None
    ]
    return f" ({', '.join(place)})" if place else ""


class InvalidTraceError(PacelineError):
    """The bytes are not a trace that can be stored: refused, nothing is kept."""

    code = "trace.invalid"


class InvalidPulseError(PacelineError):
    """A file that holds no pulse; single rows that do not are counted instead."""

    code = "pulse.invalid"


class InvalidMetadataError(PacelineError):
    """The metadata of a session is missing, malformed or contradicts itself."""

    code = "metadata.invalid"


class InvalidLabelsError(PacelineError):
    """The labels of a job's own ranges cannot be used; the faults say which."""

    code = "labels.invalid"


class BodyTooLargeError(PacelineError):
    """A body, or what it decompresses to, is over a limit."""

    code = "body.too_large"


class UnsupportedFormatError(PacelineError):
    """The bytes are in none of the accepted formats."""

    code = "trace.unknown_format"


class InvalidFolderError(PacelineError):
    """A folder of recordings that is no session: there is none in it, or more than one."""

    code = "folder.invalid"


class InvalidArchiveError(PacelineError):
    """An archive that is not unpacked: nothing of it is kept; `faults` names the entry."""

    code = "archive.invalid"


class UnanalyzableError(PacelineError):
    """A stored trace that no verdict can come from; its session ends `discarded`."""

    code = "trace.unanalyzable"


class MemoryLimitError(PacelineError):
    """The work did not fit into the memory that its process may have; elsewhere it may."""

    code = "task.memory_limit"


class InvalidSpecError(PacelineError):
    """A planning specification is malformed; `faults` holds every fault with its path."""

    code = "spec.invalid"


class InvalidTensorError(PacelineError):
    """What is said of a tensor-parallel group is malformed; `faults` holds every fault's path."""

    code = "tensor.invalid"


class InfeasiblePlanError(PacelineError):
    """No pipeline template meets the constraints, or a method has no answer; the faults say why."""

    code = "plan.infeasible"


class InvalidQuestionError(PacelineError):
    """A what-if question that cannot be read, or that asks for what the session does not have."""

    code = "what_if.invalid"


class NotFoundError(PacelineError):
    """There is no such thing, or the caller may not know of it."""

    code = "not_found"


class UnauthenticatedError(PacelineError):
    """Not authenticated: no token or sign-in, or an expired one."""

    code = "access.unauthenticated"


class ForbiddenError(PacelineError):
    """Who asks is known and may not do this."""

    code = "access.forbidden"


# The token may send for other jobs only.
JOB_FORBIDDEN: Final = "access.job_forbidden"


class SignInError(PacelineError):
    """A sign-in that did not end well."""

    code = "access.sign_in_failed"


class CrossSiteError(PacelineError):
    """A request of a browser that may come from another site's page."""

    code = "csrf.cross_site"


class InvalidAccessError(PacelineError):
    """A token, project or person that cannot be made; `faults` says why."""

    code = "access.invalid"


class ConflictError(PacelineError):
    """The request contradicts what is stored."""

    code = "conflict"


class UnknownDocumentError(PacelineError):
    """A stored document is of a version that this one cannot read."""

    code = "document.unknown_version"


class TryLaterError(PacelineError):
    """What is asked for cannot be now; after a while it can.

    Parameters
    ----------
    message : str
        One sentence for a person.
    retry_after_s : float
        Seconds to wait at least.
    code : str, optional
        As for every error.
    """

    def __init__(
        self, message: str, *, retry_after_s: float = 5.0, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class BusyError(TryLaterError):
    """The server is behind; try again after a while."""

    code = "busy"


class TooManyGuessesError(TryLaterError):
    """Too many passwords were guessed: this one was not looked at.

    Parameters
    ----------
    wait_s : float
        Seconds until the next one is.
    """

    code = "access.too_many_guesses"

    def __init__(self, wait_s: float) -> None:
        seconds = max(1, math.ceil(wait_s))
        super().__init__(
            "There were too many wrong passwords: the next one is looked at in "
            f"{seconds} {'second' if seconds == 1 else 'seconds'}.",
            retry_after_s=seconds,
        )


class InsufficientStorageError(PacelineError):
    """A disk is full; nothing was stored."""

    code = "storage.full"


class ObjectStoreError(TryLaterError):
    """The store of large blobs does not answer, or not as it should; nothing was stored."""

    code = "blobs.unavailable"


class LostBytesError(PacelineError):
    """The store of large blobs answers, and does not have what it took."""

    code = "blobs.lost"


class LostClaimError(PacelineError):
    """Another worker owns the task by now; what was computed must not be stored."""

    code = "task.lost_claim"


class InvalidChannelError(PacelineError):
    """The configuration of a channel is malformed; `faults` says where, without its values."""

    code = "channel.invalid"


class InvalidActionError(PacelineError):
    """The configuration of a kind of action is malformed; `faults` says where, without values."""

    code = "action.invalid"


class InvalidSlackError(PacelineError):
    """A body from Slack that is none of a button of ours."""

    code = "slack.invalid"


class SlackRefusedError(PacelineError):
    """A button in Slack that is not obeyed: not signed, too late, twice, or not a member's."""

    code = "slack.signature"


class InvalidRuleError(PacelineError):
    """A rule of alerts that can never hold; `faults` says where."""

    code = "rule.invalid"


class SecretKeyError(PacelineError):
    """The secrets of channels cannot be encrypted or decrypted with the keys that there are."""

    code = "secrets.unreadable"


class InstanceRunningError(PacelineError):
    """Another process serves this data directory."""

    code = "instance.running"


class StartupError(PacelineError):
    """A part of Paceline did not start."""

    code = "startup.failed"


class NotMigratedError(StartupError):
    """The database lacks the schema of this version."""

    code = "database.not_migrated"


class InvalidSettingsError(StartupError):
    """Settings that are unknown, cannot be read or contradict each other; `faults` says which."""

    code = "settings.invalid"
