"""Principals, rights and roles, and the display names of principals, whose length is limited."""

from __future__ import annotations

import fnmatch
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from app.errors import Fault
from app.platform.names import lookalike


class Right(StrEnum):
    """A right of a token or a role."""

    INGEST = "ingest"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class Role(StrEnum):
    """Role of a person in a project."""

    READER = "reader"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"

    @property
    def rights(self) -> frozenset[Right]:
        """Return the rights of the role."""
        return ROLE_RIGHTS[self]


ROLE_RIGHTS: Final = {
    Role.READER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE, Right.INGEST}),
    Role.ADMINISTRATOR: frozenset(Right),
}

# Rights that each right implies: a principal that may operate may also read.
IMPLIED: Final = {
    Right.INGEST: frozenset({Right.INGEST}),
    Right.READ: frozenset({Right.READ}),
    Right.OPERATE: frozenset({Right.OPERATE, Right.READ}),
    Right.ADMIN: frozenset(Right),
}


class ActorKind(StrEnum):
    """Kind of an actor in the audit log."""

    PERSON = "person"
    TOKEN = "token"  # noqa: S105 - a kind of actor
    # the installation itself, and users of the command line on its machine
    SYSTEM = "system"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user or program."""

    kind: ActorKind
    name: str  # of the person or token
    everywhere: frozenset[Right] = frozenset()  # what it may do in every project
    # tuple of (int, frozenset of Right): additional rights in these projects
    in_projects: tuple[tuple[int, frozenset[Right]], ...] = ()
    token: uuid.UUID | None = None  # id of the token; None for people and without sign-in
    # Patterns of the jobs for which a token may send; None: all jobs of its project.
    jobs: tuple[str, ...] | None = None

    def may_send_for(self, job: str) -> bool:
        """Return whether the principal's token may send data of a job."""
        return self.jobs is None or any(matches_job(pattern, job) for pattern in self.jobs)

    def rights_in(self, project_id: int) -> frozenset[Right]:
        """Return the principal's rights in a project; empty without access."""
        own = (rights for project, rights in self.in_projects if project == project_id)
        return self.everywhere.union(*own)

    def called(self, name: str | None) -> Self:
        """Return the signed-in name, or else the name in the request."""
        if name is None or self.kind is not ActorKind.SYSTEM:
            return self
        return replace(self, name=name)

    def is_person(self, name: str) -> bool:
        """Return whether the principal is the person with this `full_name`."""
        return self.kind is ActorKind.PERSON and self.name == name

    @property
    def projects(self) -> frozenset[int] | None:
        """Return the ids of the visible projects; None if all projects are visible."""
        return None if self.everywhere else frozenset(project for project, _ in self.in_projects)


# The program's own background work, and requests without sign-in on the user's own machine.
INSTALLATION: Final = Principal(ActorKind.SYSTEM, "installation", frozenset(Right))
LOCAL: Final = Principal(ActorKind.SYSTEM, "this machine", frozenset(Right))


# Largest number of refusals by one kind of actor that are counted separately between two writes to
# the audit log; further refusals share one count.
LINES: Final = 16
OTHERS: Final = "several others"
ANYTHING: Final = "several requests"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An actor whose request was refused."""

    kind: ActorKind
    actor: str  # name of the person or token; address of a peer
    subject: str  # what was asked for: ``POST /api/v1/plans``
    reason: str  # the problem's code


class Refusals:
    """Thread-safe counts of refused requests, with a bounded number of actors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()

    def note(self, refusal: Refusal, count: int = 1) -> None:
        """Count a refused request."""
        with self._lock:
            if refusal not in self._counts:
                alike = sum(counted.kind is refusal.kind for counted in self._counts)
                if alike >= LINES:
                    refusal = Refusal(refusal.kind, OTHERS, ANYTHING, "refused")
            self._counts[refusal] += count

    def take(self) -> Counter[Refusal]:
        """Return the counts and reset them."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken


# The group that every person belongs to whom the identity provider lets in.
ANYBODY: Final = "*"


@dataclass(frozen=True, slots=True)
class GroupRole:
    """Role of an identity provider's group in a project, or in all projects."""

    group: str
    role: Role
    project: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a role of a group: ``group=role`` or ``group=role@project``.

        Raises
        ------
        ValueError

        Examples
        --------
        >>> GroupRole.parse("team-research=operator@research").project
        'research'
        """
        group, equals, rest = text.rpartition("=")
        role, at, project = rest.partition("@")
        if not equals or not group or (at and not project):
            raise ValueError(f"{text} is not of the form group=role or group=role@project")
        return cls(group, Role(role), project or None)


def roles_of(groups: Collection[str], group_roles: Iterable[GroupRole]) -> dict[str | None, Role]:
    """Return the strongest role of the groups in each project; the key None is for all projects."""
    strongest: dict[str | None, Role] = {}
    for entry in group_roles:
        if entry.group == ANYBODY or entry.group in groups:
            present = strongest.get(entry.project)
            if present is None or len(entry.role.rights) > len(present.rights):
                strongest[entry.project] = entry.role
    return strongest


MAX_NAME_CHARACTERS: Final = 100
MAX_JOB_NAME_CHARACTERS: Final = 200
JOB_NAMES: Final = (
    f"1 to {MAX_JOB_NAME_CHARACTERS} printable characters of any script, without a slash and "
    "without blanks around them"
)
_SCHEME: Final = "://"


def clipped(text: str, characters: int) -> str:
    r"""Return the printable characters of a text, cut to `limit`.

    Examples
    --------
    >>> clipped("grace\nhopper", 7)
    'grace?…'
    """
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"


def full_name(name: str, issuer: str | None) -> str:
    """Return a person's name, qualified by the identity provider.

    Two providers, or a provider and this server, may each have a user with the same name.

    Examples
    --------
    >>> full_name("ada", None), full_name("ada", "https://login.example/realms/company")
    ('ada', 'ada (login.example/realms/company)')
    """
    bounded = clipped(name, MAX_NAME_CHARACTERS)
    if issuer is None:
        return bounded
    return f"{bounded} ({clipped(issuer.partition(_SCHEME)[2] or issuer, MAX_NAME_CHARACTERS)})"


def is_plain_name(name: str, max_characters: int) -> bool:
    """Return whether a name can be shown, and used in an address, without escaping."""
    return (
        0 < len(name) <= max_characters
        and name.isprintable()
        and name == name.strip()
        and "/" not in name
        and name not in (".", "..")
    )


def job_name_fault(name: str) -> str | None:
    """Return a sentence why a job cannot have a name; None if the name is valid.

    Examples
    --------
    >>> job_name_fault("team/llama").partition(":")[0]
    'team/llama has a slash, which would be a folder in an address'
    """
    if is_plain_name(name, MAX_JOB_NAME_CHARACTERS):
        return None
    rule = f"A job's name has {JOB_NAMES}."
    if "/" in name:
        shown = clipped(name, MAX_NAME_CHARACTERS)
        return (
            f"{shown} has a slash, which would be a folder in an address: write - or . instead. "
            f"{rule}"
        )
    return rule


def matches_job(pattern: str, job: str) -> bool:
    """Return whether a job's name matches a pattern: `*` is any text, `?` any character.

    Examples
    --------
    >>> matches_job("research-*", "research-7b"), matches_job("llama[0]", "llama0")
    (True, False)
    """
    # Python's patterns also have sets of characters in brackets, which job names may contain.
    return fnmatch.fnmatchcase(job, pattern.replace("[", "[[]"))


def new_name_fault(name: str) -> Fault | None:
    """Return why a user, a token or a channel cannot have a name; None if the name is valid."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        said = f"1 to {MAX_NAME_CHARACTERS} printable characters, without blanks around them."
        return Fault("name", said, column="name")
    alike = lookalike(name)
    return None if alike is None else Fault("lookalike", f"The name {alike}.", column="name")
