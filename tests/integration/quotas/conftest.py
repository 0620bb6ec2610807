"""Quotas are asked over HTTP, as the API's tests do."""

from __future__ import annotations

from tests.integration.api.conftest import client, install, installation

__all__ = ["client", "install", "installation"]
