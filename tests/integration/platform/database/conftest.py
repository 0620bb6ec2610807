"""Another project, with stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.access.projects import create_project
from tests.support.sessions import Stored, small_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container


@pytest.fixture
def other(container: Container) -> Container:
    return container.within(create_project(container.everywhere(), "other").id)


@pytest.fixture
def foreign(other: Container) -> Stored:
    return store(other, small_trace(), job="secret")
