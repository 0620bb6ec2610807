"""The terms of docs/glossary.md, which pages explain in tooltips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from markupsafe import Markup

from app.errors import StartupError

_ROOT: Final = Path(__file__).resolve().parents[2]
# Places of the glossary in the wheel (see pyproject.toml) and in the repository.
PLACES: Final = (_ROOT / "frontend" / "glossary.md", _ROOT / "docs" / "glossary.md")

# Labels of facts and columns that name a term differently, with the term's name.
LABELS: Final = {
    "Attempt": "attempt",
    "Attempts": "attempt",
    "Best fix": "fix",
    "Best fix then": "fix",
    "Cause": "cause",
    "Runner-up": "cause",
    "Computing": "computing",
    "Confidence": "confidence",
    "Sure": "confidence",
    "Costs": "GPU-hours lost",
    "Discrepancy": "discrepancy",
    "GPU-hours lost": "GPU-hours lost",
    "GPU time idle": "pipeline bubble",
    "Gain": "gain",
    "Gap so far": "optimality gap",
    "Known loss": "GPU-hours lost",
    "Lost": "GPU-hours lost",
    "Lost each hour": "GPU-hours lost",
    "Mark": "mark",
    "Migrated": "migration",
    "Most launch delay": "launch delay",
    "Parallelism": "parallelism",
    "Predicted": "gain",
    "Proof": "optimality gap",
    "Published S": "S",
    "Resized": "resizing",
    "S": "S",
    "Slowdown": "slowdown",
    "Slowdown now": "slowdown",
    "Slowdown then": "slowdown",
    "Step replayed": "replay",
    "Straggling jobs": "straggler",
    "Trace quality": "trace quality",
    "Accuracy budget": "accuracy budget",
    "Waste": "waste",
    "γ": "γ",
    "Session": "profiling session",
    "Worker": "worker",
}

_ROW: Final = re.compile(r"^\| (?!term \||---)([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
_USED: Final = re.compile(r' data-term="([^"]+)"')
_TAG: Final = re.compile(r"<[^>]+>")
# Placeholder in a page for the explanations of its terms.
HERE: Final = "<!-- terms -->"


@dataclass(frozen=True, slots=True)
class Term:
    """A glossary term; `meaning` has one or two sentences."""

    anchor: str  # of its row in the glossary
    meaning: Markup


def anchor_of(cell: str) -> str:
    """Return a term's anchor from the first cell of its row: ``data-parallelism``, ``mw``."""
    first = re.split(r", | \(", _TAG.sub("", cell))[0]
    return re.sub(r"\W+", "-", first.lower()).strip("-")


def parsed(text: str) -> dict[str, Term]:
    """Return the terms of a glossary by name in lower case.

    A row may have several names: ``median, p90``, ``data parallelism (DP)``.
    """
    terms: dict[str, Term] = {}
    for cell, meaning in _ROW.findall(text):
        # The glossary is part of the project, so its HTML elements are trusted: ``S<sub>w</sub>``.
        plain = Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", meaning))  # noqa: S704 - as above
        term = Term(anchor_of(cell), plain)
        for name in re.split(r", | \(", _TAG.sub("", cell)):
            terms[name.rstrip(")").lower()] = term
    return terms


@cache
def glossary() -> Mapping[str, Term]:
    """Return the terms of the glossary by name in lower case.

    Raises
    ------
    StartupError
        If the glossary is missing in the installation.
    """
    for place in PLACES:
        if place.is_file():
            return parsed(place.read_text(encoding="utf-8"))
    raise StartupError("The glossary is not installed: install Paceline again.")


def term(name: str, label: str = "") -> Markup:
    """Return a term with its explanation, as a link to its row in the glossary.

    Parameters
    ----------
    label : str
        The text of the link; by default the name of the term.
    """
    return Markup('<a class="term" href="/docs/glossary/#{}"{}>{}</a>').format(
        glossary()[name.lower()].anchor, explains(name), label or name
    )


def labeled(label: str) -> str:
    """Return the label of a fact or a column, as an explained term if it is a term."""
    name = LABELS.get(label)
    return label if name is None else term(name, label)


def explains(name: str) -> Markup:
    """Return the HTML attributes that link an element, such as a sorting heading, to a term."""
    anchor = glossary()[name.lower()].anchor
    return Markup(' data-term="{0}" aria-describedby="term-{0}"').format(anchor)


def explained(label: str) -> Markup:
    """Return the attributes of `explains` for a column's label; empty if it is no term."""
    name = LABELS.get(label)
    return Markup() if name is None else explains(name)


def with_terms(page: str) -> str:
    """Return a page with the explanation of each of its terms included once."""
    if HERE not in page:
        return page
    used = dict.fromkeys(_USED.findall(page))
    by_anchor = {entry.anchor: entry for entry in glossary().values()}
    sentences = (
        Markup('<p id="term-{}">{}</p>').format(anchor, by_anchor[anchor].meaning)
        for anchor in used
    )
    return page.replace(
        HERE, Markup('<div id="terms" hidden>{}</div>').format(Markup().join(sentences))
    )
