"""A server that requires sign-in, with two projects and a token for each right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from pydantic import SecretStr

from app.access.models import DEFAULT_PROJECT_ID
from app.access.projects import create_project
from app.access.tokens import create_token
from app.platform.container import Container
from app.platform.identity import Right
from app.platform.settings import Settings
from tests.support.project import build_everywhere
from tests.support.served import client_of, served

METRICS_TOKEN = "metrics-of-this-test"  # noqa: S105 - of a test


@dataclass(frozen=True, slots=True)
class Company:
    """A server with sign-in, its containers and its tokens.

    Parameters
    ----------
    url : str
    container : Container
        Of all projects.
    ours, theirs : Container
        Of the projects `default` and `other`.
    """

    url: str
    container: Container
    ours: Container
    theirs: Container

    def token(self, *rights: Right, project: str | None = "default", name: str = "") -> str:
        """Return a new token."""
        words = name or "-".join([*rights, project or "all"])
        return create_token(
            self.container, name=words, rights=rights, project=project, owner="tests"
        ).secret

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Return a client that sends a token."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return client_of(self.url, headers=headers)


@contextlib.contextmanager
def serving(settings: Settings, **changes: object) -> Iterator[Company]:
    """Serve with these settings and required sign-in."""
    built = build_everywhere(settings.model_copy(update=changes | {"require_sign_in": True}))
    everywhere = built.everywhere()
    other = create_project(everywhere, "other").id
    try:
        with served(built) as url:
            yield Company(url, everywhere, built.within(DEFAULT_PROJECT_ID), built.within(other))
    finally:
        built.close()


@pytest.fixture
def company(settings: Settings) -> Iterator[Company]:
    with serving(
        settings.model_copy(update={"metrics_token": SecretStr(METRICS_TOKEN)})
    ) as running:
        yield running
