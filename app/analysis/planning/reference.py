"""The page of a plan's fields: ``python -m app.analysis.planning.reference`` prints it."""

from __future__ import annotations

import sys
from typing import Final

from app.analysis.planning.document import PlanDocument, SimulatedIteration
from app.analysis.planning.job.document import JobDocument
from app.analysis.reference import Reference

_INTRODUCTION: Final = """\
# The plan

<!-- Made by `make report-docs` from the types and the docstrings of their fields; change those. -->

What `paceline plan --json` prints and `GET /api/v1/plans/{plan}` answers as `plan`, schema
`paceline.plan/1`: one JSON object, without NaN or infinities. The same as JSON Schema is in the
[OpenAPI document](http-api.md), as `PlanDocument`, or as `JobDocument` where the specification asks
for the [whole job](planner.md#the-whole-job). The API's answer has the executed iteration
in addition, as `timeline`: [SimulatedIteration](#simulatediteration).

Fields are added within a schema, none is removed or changes its meaning.

Layers, nodes and microbatches are numbered from 0; lists of stages are in the order of the
pipeline. What the objectives are and how the methods search is in [planner.md](planner.md).
"""

REFERENCE: Final = Reference(_INTRODUCTION, (PlanDocument, JobDocument, SimulatedIteration))

if __name__ == "__main__":
    sys.stdout.write(REFERENCE.page())
