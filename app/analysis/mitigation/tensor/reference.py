"""The page of the advice's fields: ``python -m app.analysis.mitigation.tensor.reference``."""

from __future__ import annotations

import sys
from typing import Final

from app.analysis.mitigation.tensor.document import MitigationDocument
from app.analysis.reference import Reference

_INTRODUCTION: Final = """\
# Advice on a tensor-parallel group

<!-- Made by `make report-docs` from the types and the docstrings of their fields; change those. -->

What `paceline mitigate --json` prints and `POST /api/v1/mitigation/plan` answers, schema
`paceline.mitigation/1`: one JSON object, without NaN or infinities. The same as JSON Schema is in
the [OpenAPI document](http-api.md), as `MitigationDocument`.

Fields are added within a schema, none is removed or changes its meaning. Ranks are numbered within
the group, from 0. What the methods do and how they are held is in [tensor.md](tensor.md).
"""

REFERENCE: Final = Reference(_INTRODUCTION, (MitigationDocument,))

if __name__ == "__main__":
    sys.stdout.write(REFERENCE.page())
