"""Where pages of things are that several drawers link to."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def host_url(host: str) -> str:
    """Return the path of a host's page."""
    return f"/hosts/{quote(host, safe='')}"


def actions_url(host: str) -> str:
    """Return the page of what was done to a host."""
    return f"/actions?{urlencode({'host': host})}"


def job_url(job: str) -> str:
    """Return the path of a job's page."""
    return f"/jobs/{quote(job)}"


def compare_url(a: object, b: object) -> str:
    """Return the path of the page that holds two sessions side by side, the earlier one first."""
    return f"/compare?{urlencode({'a': str(a), 'b': str(b)})}"
