"""Fixtures of a job's history: the server of the API's tests."""

from __future__ import annotations

from tests.integration.api.conftest import client, install, installation

__all__ = ["client", "install", "installation"]
