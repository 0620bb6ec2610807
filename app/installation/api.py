"""Routes of the installation's state, of ingest health, and of the API documentation.

The documentation is the OpenAPI document and a page made of it that needs no other host.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from app.access.guard import GuardedRoute, RequestContainer, api_router
from app.analysis.reference import collect, field_docs
from app.installation.overview import Queue, TableSize, overview
from app.installation.readiness import WorkerStatus
from app.platform.database.states import SessionState
from app.platform.validation import Moment
from app.sessions.arriving import IngestHealth, ingest_health
from app.web.bodies import REFERENCE
from app.web.problems import PROBLEMS

DAY: Final = timedelta(days=1)


class UseBody(BaseModel):
    """A project's use of its quotas."""

    model_config = ConfigDict(from_attributes=True)

    sessions_this_hour: int
    bytes: int
    operations: int
    open_sessions: int
    producers: int
    jobs: int
    attempts: int
    tensor_groups: int
    probed_devices: int
    notes_per_hour: int


class InstallationBody(BaseModel):
    """The installation's state, for its operator."""

    now: datetime
    instance: str
    version: str
    revision: str | None
    expected_revision: str | None
    postgres: str
    sessions: dict[SessionState, int]
    queues: Sequence[Queue]
    workers: Sequence[WorkerStatus]
    database_bytes: int
    tables: Sequence[TableSize]
    projects: dict[str, UseBody]


def operation_router() -> APIRouter:
    """Return the routes of quotas, of the installation's state and of ingest health."""
    routes = api_router("operation", "/api/v1")

    @routes.get("/ingest", summary="How ingest is doing")
    def get_ingest(
        container: RequestContainer,
        since: Annotated[
            Moment | None,
            Query(alias="from", description="Start; default: a day ago."),
        ] = None,
    ) -> IngestHealth:
        with container.reading() as tx:
            return ingest_health(tx, since or tx.now - DAY)

    @routes.get("/installation", summary="Queues, workers, storage and quotas")
    def get_installation(container: RequestContainer) -> InstallationBody:
        with container.everywhere().reading() as tx:
            state = overview(container, tx)
        return InstallationBody(
            now=state.now,
            instance=state.instance,
            version=state.version,
            revision=state.revision,
            expected_revision=state.expected,
            postgres=state.postgres,
            sessions=dict(state.status.sessions),
            queues=state.queues,
            workers=state.status.workers,
            database_bytes=state.database_bytes,
            tables=state.tables,
            projects={name: UseBody.model_validate(use) for name, use in state.uses.items()},
        )

    return routes


OPENAPI_URL: Final = "/api/openapi.json"
DOCS_URL: Final = "/api/docs"

STYLE: Final = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; }
h3 { margin: 2rem 0 .25rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
@media (max-width: 45rem) { table { display: block; overflow-x: auto; } }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent);
  padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; }
.method { display: inline-block; min-width: 4rem; }
"""
STYLE_ROUTE: Final = f"{DOCS_URL}/{{digest}}.css"
STYLE_URL: Final = f"{DOCS_URL}/{hashlib.sha256(STYLE.encode()).hexdigest()[:16]}.css"

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} API {{ info.version }}</title>
<link rel="stylesheet" href="{{ style_url }}">
</head>
<body>
<h1>{{ info.title }} API {{ info.version }}</h1>
<p>{{ info.description }} The same as <a href="{{ openapi_url }}">OpenAPI</a>.</p>
{% for tag, operations in groups %}
<h2>{{ tag }}</h2>
{% for operation in operations %}
<section>
<h3><code><span class="method">{{ operation.method }}</span>{{ operation.path }}</code></h3>
<p>{{ operation.summary }}.{% if operation.description %} {{ operation.description }}{% endif %}</p>
{% if operation.parameters %}
<table>
<thead><tr><th>Parameter</th><th>In</th><th>Required</th><th>Meaning</th></tr></thead>
<tbody>
{% for parameter in operation.parameters %}
<tr><td><code>{{ parameter.name }}</code></td><td>{{ parameter.in }}</td>
<td>{{ "yes" if parameter.required else "no" }}</td><td>{{ parameter.description or "" }}</td></tr>
{% endfor %}
</tbody>
</table>
{% endif %}
{% if operation.bodies %}
<p>Body:
{% for body in operation.bodies %}
<code>{{ body }}</code>{{ ", " if not loop.last }}
{% endfor %}
</p>
{% endif %}
<p>Answers:
{% for status, meaning in operation.answers %}
<code>{{ status }}</code> {{ meaning }}{{ "; " if not loop.last }}
{% endfor %}
</p>
</section>
{% endfor %}
{% endfor %}
<h2>Problems</h2>
<p>Errors are problem documents (RFC 9457) with a stable <code>code</code>.</p>
<table>
<thead><tr><th>Code</th><th>Status</th><th>Title</th></tr></thead>
<tbody>
{% for code, (status, title) in problems %}
<tr id="problem-{{ code }}">
<td><code>{{ code }}</code></td><td>{{ status }}</td><td>{{ title }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</body>
</html>
"""


def add_schemas(app: FastAPI, schemas: Callable[[], Mapping[str, Any]]) -> None:
    """Add the named schemas of stored documents to the components of the OpenAPI document."""
    of_routes = app.openapi

    def openapi() -> dict[str, Any]:
        document = of_routes()
        document["components"]["schemas"] |= schemas()
        explain(document["components"]["schemas"], _shown(app.routes))
        return document

    # FastAPI documents this assignment as the way to extend the OpenAPI document.
    app.openapi = openapi  # type: ignore[method-assign]


def explain(schemas: Mapping[str, Any], kinds: Iterable[type]) -> None:
    """Describe the properties of dataclass schemas by the docstrings below the dataclass fields."""
    for kind in kinds:
        long_name = f"{kind.__module__}.{kind.__qualname__}".replace(".", "__")
        schema = schemas.get(kind.__name__) or schemas.get(long_name, {"properties": {}})
        for name, text in field_docs(kind).items():
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", text)


def _shown(routes: Iterable[BaseRoute]) -> list[type]:
    """Return the dataclasses in the request and response bodies of the routes."""
    kinds: list[type] = []
    for route in routes:
        if isinstance(route, APIRoute):
            collect(route.response_model, kinds)
            for body in route.dependant.body_params:
                collect(body.field_info.annotation, kinds)
    return [kind for kind in kinds if is_dataclass(kind)]


def router() -> APIRouter:
    """Return the routes of the API documentation's page and of its style sheet."""
    routes = APIRouter(route_class=GuardedRoute, include_in_schema=False)
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(PAGE)

    @routes.get(DOCS_URL)
    def page(request: Request) -> HTMLResponse:
        document = request.app.openapi()
        return HTMLResponse(
            template.render(
                info=document["info"],
                groups=_groups(document),
                problems=sorted(PROBLEMS.items()),
                openapi_url=OPENAPI_URL,
                style_url=STYLE_URL,
            )
        )

    @routes.get(STYLE_ROUTE)
    def style() -> Response:
        return Response(STYLE, media_type="text/css")

    return routes


# The project of a request by a token of several projects, as a parameter of each route of the API.
PROJECT: Final[Mapping[str, Any]] = {
    "name": "Paceline-Project",
    "in": "header",
    "required": False,
    "description": "Name of the project; needed if the token has several.",
    "schema": {"type": "string"},
}
_BEARER: Final = {"type": "http", "scheme": "bearer"}


def publish(app: FastAPI, *models: type[BaseModel]) -> None:
    """Complete the OpenAPI document, for people and for generators of clients.

    Adds the schemas of bodies that routes parse without FastAPI, the token, and the project's
    header.
    """
    make = app.openapi

    @functools.cache
    def openapi() -> dict[str, Any]:
        document = make()
        _, definitions = models_json_schema(
            [(model, "validation") for model in models], ref_template=REFERENCE
        )
        document["components"]["schemas"] |= definitions["$defs"]
        document["components"]["securitySchemes"] = {"token": _BEARER}
        # Or none: a server on a loopback address needs no sign-in.
        document["security"] = [{"token": []}, {}]
        for path, operations in document["paths"].items():
            for operation in operations.values() if path.startswith("/api/") else ():
                operation.setdefault("parameters", []).append(PROJECT)
        return _with_short_names(document)

    app.openapi = openapi  # type: ignore[method-assign] # the framework's way to extend it


def _with_short_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with a unique name and title for each schema, without modules' names.

    FastAPI names a model by its module where several have the same name; generated clients name
    their classes by the titles, and lose one of two that are equal.
    """
    schemas = document["components"]["schemas"]
    short = {name: _short(name) for name in schemas}
    text = json.dumps(document)
    for name, new in short.items():
        if name != new:
            text = text.replace(
                f'"{REFERENCE.format(model=name)}"', f'"{REFERENCE.format(model=new)}"'
            )
    renamed: dict[str, Any] = json.loads(text)
    renamed["components"]["schemas"] = {
        short[name]: schema | {"title": short[name]}
        for name, schema in renamed["components"]["schemas"].items()
    }
    return renamed


def _short(name: str) -> str:
    """Return the name of a schema, with its subject in place of its module.

    Examples
    --------
    >>> _short("app__hosts__api__FigureBody"), _short("FigureBody")
    ('HostsFigureBody', 'FigureBody')
    """
    match name.split("__"):
        case [_, subject, *_, kind]:
            return f"{subject.capitalize()}{kind}"
    return name


def _groups(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "summary": operation["summary"],
                    "description": operation.get("description"),
                    "parameters": [
                        item
                        for item in operation.get("parameters", ())
                        if item["name"] != PROJECT["name"]
                    ],
                    "bodies": list(operation.get("requestBody", {}).get("content", {})),
                    "answers": [
                        (status, answer["description"])
                        for status, answer in operation["responses"].items()
                    ],
                }
            )
    return sorted(groups.items())
