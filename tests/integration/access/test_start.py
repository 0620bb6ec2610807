"""Output and refusals of a server that starts with required sign-in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from app import bootstrap
from app.access.tokens import create_token
from app.errors import StartupError
from app.platform.identity import Right
from app.run.supervisor import require_administrator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container
    from app.platform.settings import Settings


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    """Yield a container of an installation without any user."""
    built = bootstrap.build(settings.model_copy(update={"require_sign_in": True}))
    yield built
    built.close()


def _with(container: Container, **changes: object) -> Container:
    return replace(container, settings=container.settings.model_copy(update=changes))


def _administered(container: Container) -> None:
    create_token(
        container.everywhere(), name="root", rights=[Right.ADMIN], project=None, owner="tests"
    )


def _said(container: Container) -> list[str]:
    with capture_logs() as logs:
        require_administrator(container)
    return [entry["event"] for entry in logs if entry["log_level"] == "warning"]


def test_a_start_where_no_user_could_sign_in_is_refused_with_the_remedy(
    container: Container,
) -> None:
    with pytest.raises(StartupError, match="paceline token create NAME --scope admin"):
        require_administrator(container)


@pytest.mark.parametrize("url", [None, "http://paceline.example"])
def test_cookies_over_plain_http_are_warned_of(container: Container, url: str | None) -> None:
    _administered(container)
    [warning] = _said(_with(container, external_url=url))
    assert "cookies are not kept to TLS" in warning
    assert "PACELINE_EXTERNAL_URL" in warning


def test_nothing_is_warned_of_behind_tls_or_without_sign_in(container: Container) -> None:
    assert _said(_with(container, require_sign_in=False)) == []
    _administered(container)
    assert _said(_with(container, external_url="https://paceline.example")) == []
