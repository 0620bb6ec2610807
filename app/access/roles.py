"""Which groups of a provider have which roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from app.access.principals import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Everybody whom the provider lets in.
ANYBODY: Final = "*"


@dataclass(frozen=True, slots=True)
class GroupRole:
    """The role of a group; in every project without one."""

    group: str
    role: Role
    project: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what ``group=role`` or ``group=role@project`` says.

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


def roles_of(groups: Collection[str], known: Iterable[GroupRole]) -> dict[str | None, Role]:
    """Return the strongest role in each project that groups give; None stands for all projects."""
    found: dict[str | None, Role] = {}
    for entry in known:
        if entry.group == ANYBODY or entry.group in groups:
            present = found.get(entry.project)
            if present is None or len(entry.role.rights) > len(present.rights):
                found[entry.project] = entry.role
    return found
