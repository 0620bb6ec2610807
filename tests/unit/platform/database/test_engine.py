"""The password of a database URL, which connections do not reveal."""

from __future__ import annotations

from sqlalchemy.exc import OperationalError

from app.platform.database.engine import make_engine


def test_errors_do_not_contain_the_stored_values() -> None:
    engine = make_engine("postgresql://unknown@127.0.0.1:1/none")
    error = OperationalError(
        "INSERT", {"x": "of-a-sign-in"}, Exception("gone"), hide_parameters=engine.hide_parameters
    )
    assert "of-a-sign-in" not in str(error)
    engine.dispose()
