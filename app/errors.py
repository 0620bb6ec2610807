"""Domain errors with stable codes.

A code is part of the public contract: clients, tests and runbooks match on it, so it never changes
its meaning. This module is independent of HTTP; `app/web/problems.py` maps codes to statuses.
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
        """Return the fault without the unset positions."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class PacelineError(Exception):
    """Base class of all errors that Paceline raises on purpose.

    Parameters
    ----------
    message : str
        One sentence for a person.
    code : str, optional
        Overrides the class's code if one class covers several codes.
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
    """Yield the lines in which a command prints an error: its message, then a line for each fault.

    A fault that the message contains already has no line; its position is added to the message.
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
    """The bytes are no valid trace: nothing is stored."""

    code = "trace.invalid"


class InvalidPulseError(PacelineError):
    """A file contains no pulse; invalid rows of a pulse are counted instead."""

    code = "pulse.invalid"


class InvalidMetadataError(PacelineError):
    """The metadata of a session is missing, malformed or contradicts itself."""

    code = "metadata.invalid"


class InvalidLabelsError(PacelineError):
    """The labels of a job's own ranges are invalid; the faults name them."""

    code = "labels.invalid"


class BodyTooLargeError(PacelineError):
    """A body, or its decompressed content, exceeds a limit."""

    code = "body.too_large"


class UnsupportedFormatError(PacelineError):
    """The bytes are in none of the accepted formats."""

    code = "trace.unknown_format"


class InvalidFolderError(PacelineError):
    """A folder of recordings contains no session, or more than one."""

    code = "folder.invalid"


class InvalidArchiveError(PacelineError):
    """An archive is refused, and nothing of it is stored; `faults` names the entry."""

    code = "archive.invalid"


class UnanalyzableError(PacelineError):
    """A stored trace allows no verdict; its session ends `discarded`."""

    code = "trace.unanalyzable"


class MemoryLimitError(PacelineError):
    """The work exceeded its process's memory limit; another process may have a higher limit."""

    code = "task.memory_limit"


class InvalidSpecError(PacelineError):
    """A planning specification is malformed; `faults` holds every fault with its path."""

    code = "spec.invalid"


class InvalidTensorError(PacelineError):
    """A request about a tensor-parallel group is malformed; `faults` has the path of each fault."""

    code = "tensor.invalid"


class InfeasiblePlanError(PacelineError):
    """No pipeline template meets the constraints, or a method has no answer; the faults say why."""

    code = "plan.infeasible"


class InvalidQuestionError(PacelineError):
    """A what-if question is malformed, or selects operations that the session does not have."""

    code = "what_if.invalid"


class NotFoundError(PacelineError):
    """The object does not exist, or the caller may not know that it exists."""

    code = "not_found"


class UnauthenticatedError(PacelineError):
    """Not authenticated: no token or sign-in, or an expired one."""

    code = "access.unauthenticated"


class ForbiddenError(PacelineError):
    """The caller is authenticated but lacks the right for this request."""

    code = "access.forbidden"


# The token may send for other jobs only.
JOB_FORBIDDEN: Final = "access.job_forbidden"


class SignInError(PacelineError):
    """A sign-in failed."""

    code = "access.sign_in_failed"


class CrossSiteError(PacelineError):
    """A request of a browser that may come from another site's page."""

    code = "csrf.cross_site"


class InvalidAccessError(PacelineError):
    """A token, project or person cannot be created; `faults` contains the reasons."""

    code = "access.invalid"


class ConflictError(PacelineError):
    """The request contradicts what is stored."""

    code = "conflict"


class UnknownDocumentError(PacelineError):
    """A stored document has a version that this program cannot read."""

    code = "document.unknown_version"


class NewerFormatError(UnknownDocumentError):
    """Stored bytes have a format that only a later version reads; they are not damaged.

    Parameters
    ----------
    message : str
        One sentence for a person.
    generation : int
        Generation of the format: see `app.analysis.generation`.
    """

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


class TryLaterError(PacelineError):
    """The request cannot be served now, but later.

    Parameters
    ----------
    message : str
        One sentence for a person.
    retry_after_s : float
        Minimum time to wait, s.
    code : str, optional
        As of `PacelineError`.
    """

    def __init__(
        self, message: str, *, retry_after_s: float = 5.0, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class BusyError(TryLaterError):
    """The server is overloaded; the sender should try again later."""

    code = "busy"


class TooManyGuessesError(TryLaterError):
    """Too many wrong passwords were entered: this password was not checked.

    Parameters
    ----------
    wait_s : float
        Seconds until the next password is checked.
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
    """The object store of large blobs does not answer, or not as expected; nothing was stored."""

    code = "blobs.unavailable"


class LostBytesError(PacelineError):
    """The object store of large blobs has lost bytes that it had confirmed."""

    code = "blobs.lost"


class LostClaimError(PacelineError):
    """Another worker owns the task now; the result must not be stored."""

    code = "task.lost_claim"


class InvalidChannelError(PacelineError):
    """The configuration of a channel is malformed; `faults` has paths without values."""

    code = "channel.invalid"


class InvalidActionError(PacelineError):
    """The configuration of a kind of action is malformed; `faults` has paths without values."""

    code = "action.invalid"


class InvalidSlackError(PacelineError):
    """A body from Slack does not describe one of this server's buttons."""

    code = "slack.invalid"


class SlackRefusedError(PacelineError):
    """A button in Slack is refused: not signed, too late, pressed twice, or not by a member."""

    code = "slack.signature"


class InvalidRuleError(PacelineError):
    """An alert rule can never hold; `faults` has the reasons."""

    code = "rule.invalid"


class SecretKeyError(PacelineError):
    """The secrets of channels cannot be encrypted or decrypted with the available keys."""

    code = "secrets.unreadable"


class InstanceRunningError(PacelineError):
    """Another process serves this data directory."""

    code = "instance.running"


class StartupError(PacelineError):
    """A component of Paceline did not start."""

    code = "startup.failed"


class NotMigratedError(StartupError):
    """The database lacks the schema of this version."""

    code = "database.not_migrated"


class InvalidSettingsError(StartupError):
    """Settings are unknown, invalid or contradictory; `faults` names them."""

    code = "settings.invalid"
