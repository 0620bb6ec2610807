"""The report as JSON Schema, with the words of its types."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from app.analysis.reference import members, summary
from app.analysis.report.reference import REFERENCE
from app.db.documents import REPORT

NAME: Final = "Report"
_REFERENCE: Final = "#/components/schemas/{model}"


@cache
def report_schemas() -> dict[str, Any]:
    """Return the schemas of ``paceline.report/1`` by their name among OpenAPI's components.

    Those of its parts are called ``Report.Sizes`` and so on: requests and answers have types of
    such names too.
    """
    schema = REPORT.json_schema(ref_template=_REFERENCE.format(model=f"{NAME}.{{model}}"))
    parts = schema.pop("$defs")
    for kind in REFERENCE.types():
        described = parts.get(kind.__name__, schema)
        described["description"] = summary(kind)
        for member in members(kind):
            described["properties"][member.key]["description"] = member.text
    return {NAME: schema} | {f"{NAME}.{name}": part for name, part in parts.items()}


def reference() -> dict[str, str]:
    """Return the component that the routes name in place of a report's schema."""
    return {"$ref": _REFERENCE.format(model=NAME)}
