"""The tools: one function each, and the table of all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from app.mcp.tools.documentation import search_docs
from app.mcp.tools.hosts import hosts
from app.mcp.tools.incidents import acknowledge, get_incident, list_incidents
from app.mcp.tools.jobs import get_job, list_jobs
from app.mcp.tools.plans import plan
from app.mcp.tools.sessions import compare, explain_verdict, get_session, what_if


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; its name, arguments and description are those of its function."""

    function: Callable[..., Awaitable[str]]
    title: str
    # Whether it changes nothing that people see.
    reads: bool = True


TOOLS: Final = (
    Tool(list_incidents, "Incidents"),
    Tool(get_incident, "An incident"),
    Tool(list_jobs, "Jobs"),
    Tool(get_job, "A job over time"),
    Tool(get_session, "A session"),
    Tool(explain_verdict, "Why a session is slow, and what would help"),
    Tool(what_if, "What a session's step would take"),
    Tool(compare, "What changed between two sessions"),
    Tool(hosts, "Hosts by what they cost"),
    Tool(plan, "A pipeline template for a cluster"),
    Tool(search_docs, "Search the documentation"),
    Tool(acknowledge, "Acknowledge an incident", reads=False),
)
