"""Addresses of pages: query parameters, and links to jobs, sessions and hosts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Query

T = TypeVar("T")

# Pages ignore invalid query parameters, so each parameter is accepted as text.
QueryText = Annotated[str, Query()]

# Maximum of digits of a page number in an address; longer numbers are invalid.
MAX_DIGITS = 6


def asked_for(kind: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Return a dependency of a route that parses the query into an instance of a class.

    The dependency is asynchronous, because the framework would construct a class in another thread,
    and each page would wait for the thread and again for the event loop.
    """

    async def make(**given: Any) -> T:  # noqa: ANN401 - as the class takes them
        return kind(**given)

    make.__signature__ = inspect.signature(kind, eval_str=True)  # type: ignore[attr-defined]
    return make


@dataclass(frozen=True, slots=True)
class Address:
    """A page's path and its query parameters; parameters without a value are left out."""

    path: str
    parameters: Mapping[str, str]

    def but(self, **changes: str | int | None) -> str:
        """Return the address with changed parameters; empty parameters are removed."""
        merged = {**self.parameters, **changes}
        query = urlencode({name: value for name, value in merged.items() if value})
        return f"{self.path}?{query}" if query else self.path


def page_number(text: str) -> int:
    """Return the page number in an address; 1 if it is not a number."""
    digits = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return max(1, int(text)) if digits else 1


def host_url(host: str) -> str:
    """Return the path of a host's page."""
    return f"/hosts/{quote(host, safe='')}"


def actions_url(host: str) -> str:
    """Return the path of the page of actions on a host."""
    return f"/actions?{urlencode({'host': host})}"


def job_url(job: str) -> str:
    """Return the path of a job's page."""
    return f"/jobs/{quote(job)}"


def compare_url(a: object, b: object) -> str:
    """Return the path of the comparison of two sessions, the earlier one first."""
    return f"/compare?{urlencode({'a': str(a), 'b': str(b)})}"
