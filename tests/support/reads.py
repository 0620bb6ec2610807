"""Read functions of services, each called in its own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from app.platform.database.unit_of_work import Reads

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.platform.container import Container

P = ParamSpec("P")
T = TypeVar("T")


def read(
    container: Container,
    function: Callable[Concatenate[Reads, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return the result of a read function."""
    with container.reading() as tx:
        return function(tx, *args, **kwargs)
