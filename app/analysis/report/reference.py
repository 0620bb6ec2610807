"""The page of a report's fields: ``python -m app.analysis.report.reference`` prints it."""

from __future__ import annotations

import sys
from typing import Final

from app.analysis.reference import Reference
from app.analysis.report.document import Report

_INTRODUCTION: Final = """\
# The report

<!-- Made by `make report-docs` from the types and the docstrings of their fields; change those. -->

What `paceline analyze --json` prints and `GET /api/v1/sessions/{session}/report` answers, schema
`paceline.report/1`: one JSON object, without NaN or infinities. The same as JSON Schema is in the
[OpenAPI document](http-api.md), as `Report`.

Fields are added within a schema, none is removed or changes its meaning.

S is the slowdown: simulated step time with the recorded durations ÷ with all of them ideal. A
worker is a cell of DP rank and pipeline stage; lists by worker are `[dp][pp]`, lists by step are in
the order of `steps.analyzed`.
"""

REFERENCE: Final = Reference(_INTRODUCTION, (Report,))

if __name__ == "__main__":
    sys.stdout.write(REFERENCE.page())
