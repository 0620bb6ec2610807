"""Containers for use cases: within the project `default`, which every installation has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.util import LRUCache

from app import bootstrap
from app.access.models import DEFAULT_PROJECT_ID

if TYPE_CHECKING:
    from sqlalchemy import Compiled

    from app.platform.container import Container
    from app.platform.settings import Settings

# Above the number of statements in the program; SQLAlchemy's default cache keeps 500.
_MOST: Final = 2000


class _Compiled(LRUCache[tuple[Any, ...], "Compiled"]):
    """Compiled statements, shared by all engines of a test process.

    By default each engine has its own cache. Every test creates an engine, so the same statements
    would be compiled again in each test.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:  # noqa: ANN401 - as in its base
        return super().get(key[1:], default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Compiled) -> None:
        super().__setitem__(key[1:], compiled)


_COMPILED: Final = _Compiled(_MOST)


def build_everywhere(settings: Settings) -> Container:
    """Return the container that the program builds."""
    built = bootstrap.build(settings)
    built.engine.update_execution_options(compiled_cache=_COMPILED)
    return built


def build(settings: Settings) -> Container:
    """Return the program's container within the project `default`."""
    return build_everywhere(settings).within(DEFAULT_PROJECT_ID)
