"""A list declares its columns once: their SQL, their orders, and their names in files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import pytest
from pydantic import Field
from sqlalchemy.dialects import postgresql

from app.jobs.models import Job
from app.sessions.models.tables import Session
from app.web.lists import Column, Listing, Page, in_files, last_page


@dataclass(frozen=True, slots=True)
class Row:
    job: Annotated[str, Column(Job.name, sort="job")]
    steps: Annotated[int, Column(Session.steps, sort="-steps", csv="profiled_steps")]
    world: Annotated[int, Column(Session.world, csv=None)] = 1
    pinned: Annotated[bool, Column(Session.pinned), Field(exclude=True)] = False
    number: Annotated[int, Column(Session.number, csv="session"), Field(exclude=True)] = 0
    spare: int = 0
    archived_at: Annotated[datetime | None, Column(Job.archived_at, sort="archived", csv=None)] = (
        None
    )


LIST = Listing(
    Row,
    lambda query: query.join(Job),
    ties=(Session.id.expression,),
    default_sort="-steps",
    model=Session,
)


def sql(*parts: object) -> list[str]:
    return [str(part.compile(dialect=postgresql.dialect())) for part in parts]  # type: ignore[attr-defined, no-untyped-call]


def test_the_query_reads_each_column_by_its_name() -> None:
    assert list(LIST.query().selected_columns.keys()) == [
        *("job", "steps", "world", "pinned", "number", "archived_at"),
    ]
    [query] = sql(LIST.query())
    assert "job.name AS job" in query
    assert "JOIN job" in query


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("job", "job.name ASC NULLS LAST"),
        ("-job", "job.name DESC NULLS LAST"),
        ("steps", "session.steps ASC"),
        ("", "session.steps DESC"),
        ("archived", "job.archived_at ASC NULLS LAST"),
        ("-nonsense", "session.steps DESC"),
    ],
)
def test_an_order_ends_with_that_of_equals(asked: str, expected: str) -> None:
    assert sql(*LIST.order(asked)) == [expected, "session.id"]


def test_a_list_without_a_default_order_has_that_of_equals() -> None:
    assert sql(*Listing(Row, ties=(Session.id.expression,)).order("")) == ["session.id"]


def test_files_have_what_the_api_has_unless_a_column_says_otherwise() -> None:
    assert in_files(Row) == {
        "job": "job",
        "profiled_steps": "steps",
        "session": "number",
        "spare": "spare",
    }


def test_rows_are_made_by_name() -> None:
    assert LIST.rows([{"steps": 3, "job": "llm"}]) == [Row("llm", 3)]


@pytest.mark.parametrize(
    ("asked", "number", "first", "last"), [(1, 1, 1, 3), (2, 2, 4, 4), (99, 2, 4, 4), (0, 1, 1, 3)]
)
def test_a_page_that_there_is_not_is_the_last_one(
    asked: int, number: int, first: int, last: int
) -> None:
    rows = [Row(name, 1) for name in "abcd"]
    page = Page(rows[first - 1 : last], last_page(asked, len(rows), 3), len(rows), 3)
    assert (page.number, page.pages, page.first, page.last) == (number, 2, first, last)


def test_an_empty_list_is_one_page() -> None:
    assert (last_page(3, 0, 50), Page([], 1, 0, 50).pages) == (1, 1)
