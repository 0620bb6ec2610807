"""Fixtures of the API's tests: quotas are tested over HTTP."""

from __future__ import annotations

from tests.integration.api.conftest import client, install, installation

__all__ = ["client", "install", "installation"]
