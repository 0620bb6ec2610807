"""Parts of pages as HTML: text is escaped, unless it is markup."""

from __future__ import annotations

from datetime import UTC, datetime

from app.web import html
from app.web.parts import StateLabel, sparkline

NOW = datetime(2026, 11, 20, 9, 26, tzinfo=UTC)


def test_elements_escape_text_and_leave_out_empty_attributes() -> None:
    found = html.element("td", "<", html.note("&"), class_="", data_row=True, title='"')
    assert found == '<td data-row title="&#34;">&lt;<span class="note">&amp;</span></td>'


def test_a_slowdown_follows_its_color() -> None:
    assert html.slowdown(1.0).endswith('fill="var(--s-100)"/></svg>1.00×')
    assert html.slowdown(None).endswith('<use href="#g-hatched"/></svg>none')


def test_a_state_is_a_glyph_and_a_word() -> None:
    assert 'class="state muted"' in html.state(StateLabel("ok", "Watching", 4, quiet=True))
    assert html.state(StateLabel("slow", "a<b", 0)).endswith("a&lt;b</span>")


def test_a_place_leads_to_its_host() -> None:
    found = html.where("node-1, worker (0, 1)", "node-1")
    assert found == '<a class="within" href="/hosts/node-1">node-1</a>, worker (0, 1)'
    assert html.where("stage <1>") == "stage &lt;1&gt;"


def test_a_sparkline_draws_gaps_lines_and_what_is_above() -> None:
    found = html.spark(sparkline([1.2, None, 2.0]))
    assert [found.count(part) for part in ("<rect", "<path", "<circle")] == [1, 3, 1]
    assert html.spark(None) == ""


def test_narrow_rows_say_what_is_known() -> None:
    assert html.narrow("a", "", "b") == '<span class="only">a · b</span>'


def test_a_bar_has_its_length_its_color_and_its_mark() -> None:
    assert '<rect width="12.50" height="8"/></svg>' in html.bar(12.5)
    marked = html.bar(50, "sel", mark=20)
    assert '<rect width="50.00" height="8" class="sel"/>' in marked
    assert '<rect class="mid" x="20.00" width="1.5" height="8"/>' in marked
