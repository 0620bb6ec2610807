"""Fixtures for tests of hooks: a timeline whose time tests set, and a sink for operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.unit.client.conftest import receiver

__all__ = ["receiver"]


@dataclass
class Seen:
    """A sink that stores its operations."""

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
