"""An unavailable database is reported in one line."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError, ProgrammingError

from app.platform.database.engine import make_engine, said, unavailable
from tests.support.command import paceline

NOWHERE = "postgresql://unknown@127.0.0.1:1/nothing"


@pytest.mark.parametrize("command", [("migrate",), ("token", "list")])
def test_commands_say_in_a_line_that_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", NOWHERE)
    done = paceline(*command)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("paceline: The database does not answer: ")
    assert "Connection refused" in line
    assert line.endswith("[database.unavailable]")


def test_a_fault_s_message_omits_the_address_of_its_documentation() -> None:
    with pytest.raises(OperationalError) as caught, make_engine(NOWHERE).connect() as connection:
        connection.execute(select(1))
    assert "\n" not in said(caught.value)
    assert "sqlalche.me" not in said(caught.value)


def test_other_errors_are_not_the_database_s_absence() -> None:
    assert unavailable(ValueError("x")) is None
    assert unavailable(ProgrammingError("SELECT", {}, Exception("no such table"))) is None
