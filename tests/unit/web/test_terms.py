from __future__ import annotations

import re
from pathlib import Path

from app.web.moments import plain
from app.web.pages import TEMPLATES_DIR
from app.web.terms import HERE, LABELS, explained, glossary, labeled, parsed, term, with_terms

DASHBOARD = Path(__file__).parents[3] / "app" / "dashboard"
# A use of a term in a template or in Python: term("discrepancy"), explains('S').
USE = re.compile(r"\b(?:term|explains)\(\s*[\"']([^\"']+)[\"']")


def test_every_term_that_pages_use_is_in_the_glossary() -> None:
    texts = [path.read_text() for path in TEMPLATES_DIR.rglob("*.html")]
    texts += [path.read_text() for path in DASHBOARD.rglob("*.py")]
    used = {name.lower() for text in texts for name in USE.findall(text)}
    assert "headline slowdown" in glossary()
    assert (used | {name.lower() for name in LABELS.values()}) - set(glossary()) == set()


def test_a_row_of_the_glossary_has_a_meaning_under_each_of_its_names() -> None:
    found = parsed(
        "| term | meaning | source |\n| --- | --- | --- |\n"
        "| M<sub>W</sub>, M<sub>S</sub> | Shares of `x`. | W |\n"
        "| data parallelism (DP) | A. | M |\n"
    )
    assert set(found) == {"mw", "ms", "data parallelism", "dp"}
    assert found["ms"].anchor == "mw"
    assert found["mw"].meaning == "Shares of <code>x</code>."
    assert found["dp"].anchor == "data-parallelism"


def test_a_term_is_a_link_to_the_glossary_that_its_sentence_describes() -> None:
    assert term("discrepancy", "Difference") == (
        '<a class="term" href="/docs/glossary/#discrepancy" data-term="discrepancy" '
        'aria-describedby="term-discrepancy">Difference</a>'
    )


def test_labels_that_are_no_terms_stay_as_they_are() -> None:
    assert labeled("a <b>") == "a <b>"
    assert explained("Received") == ""
    assert plain(labeled("Lost each hour")) == "Lost each hour"


def test_a_page_has_the_sentence_of_each_of_its_terms_once() -> None:
    page = with_terms(f"<p>{term('rank')} {term('rank')}</p>{HERE}")
    assert page.count('id="term-rank"') == 1
    assert str(glossary()["rank"].meaning) in page
    assert with_terms("<p></p>") == "<p></p>"
