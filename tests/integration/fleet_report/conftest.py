"""A server of a test."""

from __future__ import annotations

from tests.integration.dashboard.conftest import client

__all__ = ["client"]
