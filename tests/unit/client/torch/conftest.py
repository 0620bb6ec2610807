"""What tests of the hooks share: a timeline that a test sets, and where operations go."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.unit.client.conftest import receiver

__all__ = ["receiver"]


@dataclass
class Seen:
    """A sink, and what came to it."""

    operations: list[tuple[str, int, int, int, int | None, int | None]] = field(
        default_factory=list
    )

    def __call__(  # noqa: PLR0917 - as hooks call it
        self, op: str, start_ns: int, duration_ns: int, step: int, mb: int | None, mc: int | None
    ) -> None:
        self.operations.append((op, start_ns, duration_ns, step, mb, mc))

    def names(self) -> list[str]:
        return [operation[0] for operation in self.operations]


@pytest.fixture
def seen() -> Seen:
    return Seen()
