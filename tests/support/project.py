"""Containers as use cases take them: in the project that every installation has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.util import LRUCache

from app import bootstrap
from app.access.models import DEFAULT_PROJECT_ID

if TYPE_CHECKING:
    from sqlalchemy import Compiled

    from app.platform.container import Container
    from app.platform.settings import Settings

# More than the program has; an engine of its own keeps 500.
_MOST: Final = 2000


class _Compiled(LRUCache[tuple[Any, ...], "Compiled"]):
    """Statements as they were compiled, for all engines of a process of the tests.

    An engine keeps its own, by its dialect. Every test has an engine: what all of them ask the same
    server would be compiled anew a thousand times.
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
    """Return the same in the project `default`."""
    return build_everywhere(settings).within(DEFAULT_PROJECT_ID)
