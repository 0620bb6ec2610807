"""Who does something, and what that may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self


class Right(StrEnum):
    """What a token or a role allows."""

    INGEST = "ingest"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class Role(StrEnum):
    """What a person is in a project."""

    READER = "reader"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"

    @property
    def rights(self) -> frozenset[Right]:
        """Return what it allows."""
        return ROLE_RIGHTS[self]


ROLE_RIGHTS: Final = {
    Role.READER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE, Right.INGEST}),
    Role.ADMINISTRATOR: frozenset(Right),
}

# What a right brings along: who may operate on something may look at it.
IMPLIED: Final = {
    Right.INGEST: frozenset({Right.INGEST}),
    Right.READ: frozenset({Right.READ}),
    Right.OPERATE: frozenset({Right.OPERATE, Right.READ}),
    Right.ADMIN: frozenset(Right),
}


class ActorKind(StrEnum):
    """The kinds of actors in the audit log."""

    PERSON = "person"
    TOKEN = "token"  # noqa: S105 - a kind of actor
    # the installation itself, and whoever sits at its machine
    SYSTEM = "system"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or program that was let in."""

    kind: ActorKind
    name: str  # of the person or token
    everywhere: frozenset[Right] = frozenset()  # what it may do in every project
    # tuple of (int, frozenset of Right): additional rights in these projects
    in_projects: tuple[tuple[int, frozenset[Right]], ...] = ()

    def rights_in(self, project_id: int) -> frozenset[Right]:
        """Return what it may do in a project; nothing where it has no business there."""
        own = (rights for known, rights in self.in_projects if known == project_id)
        return self.everywhere.union(*own)

    def called(self, name: str | None) -> Self:
        """Return who acts: whoever signed in, else under the name that they give themselves."""
        if name is None or self.kind is not ActorKind.SYSTEM:
            return self
        return replace(self, name=name)

    def is_person(self, name: str) -> bool:
        """Return whether it is the user of that full name (`app.access.names.full_name`)."""
        return self.kind is ActorKind.PERSON and self.name == name

    @property
    def projects(self) -> frozenset[int] | None:
        """Return the projects that it may know of; None where these are all."""
        return None if self.everywhere else frozenset(known for known, _ in self.in_projects)


# What the program does by itself, and what is done without any sign-in on a machine of one's own.
INSTALLATION: Final = Principal(ActorKind.SYSTEM, "installation", frozenset(Right))
LOCAL: Final = Principal(ActorKind.SYSTEM, "this machine", frozenset(Right))
