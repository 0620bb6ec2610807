"""The documentation that the server has."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BaseModel, Field

from app.mcp.answers import Answer, Value
from app.mcp.asking import Ctx, api_of

_SECTIONS: Final = 6
_INDEX: Final = "/docs/search/search_index.json"
# A word in a heading says more than one in a text.
_IN_TITLE: Final = 5


class _Section(BaseModel):
    location: str
    title: str
    text: str


class _Index(BaseModel):
    docs: list[_Section]


async def search_docs(ctx: Ctx, words: Annotated[str, Field(min_length=1, max_length=200)]) -> str:
    """Search Paceline's documentation: sections that have most of the words, with their text."""
    api = api_of(ctx)
    index = _Index.model_validate_json(await api.page(_INDEX))
    asked = set(re.findall(r"\w+", words.lower()))
    found = sorted(
        ((score, section) for section in index.docs if (score := _score(section, asked))),
        key=lambda one: -one[0],
    )[:_SECTIONS]
    rows: list[dict[str, Value]] = [
        {
            "title": section.title,
            "text": section.text,
            "link": f"{api.link('docs')}/{section.location}",
        }
        for _, section in found
    ]
    return Answer({"sections": len(rows)}, rows).text()


def _score(section: _Section, asked: set[str]) -> int:
    title, text = (set(re.findall(r"\w+", one.lower())) for one in (section.title, section.text))
    return _IN_TITLE * len(asked & title) + len(asked & text)
