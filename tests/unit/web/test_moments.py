from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from app.web import moments
from app.web.moments import Form, When, written

NOW = datetime(2026, 11, 20, 9, 26, 12, tzinfo=UTC)
# The same cases as in the test of the pages' script (tests/js/zone.test.js).
CASES = json.loads((Path(__file__).parents[2] / "js" / "moment_cases.json").read_text())


@pytest.mark.parametrize(("at", "form", "words"), CASES)
def test_moments_are_written_in_utc(at: str, form: str, words: str) -> None:
    moment = datetime.fromisoformat(at)
    east = moment.astimezone(timezone(timedelta(hours=9)))
    assert written(moment, Form(form), NOW) == written(east, Form(form), NOW) == words


def test_a_moment_is_an_element_with_its_exact_time() -> None:
    assert moments.when(NOW - timedelta(days=2), NOW) == (
        '<time datetime="2026-11-18T09:26:12+00:00" title="18 Nov 2026 09:26:12 UTC" '
        'data-time="short">18 Nov 09:26 UTC</time>'
    )


def test_an_age_says_its_moment() -> None:
    found = moments.ago(NOW - timedelta(minutes=4), NOW)
    assert 'datetime="2026-11-20T09:22:12+00:00"' in found
    assert found.endswith(" data-ago>4\N{NO-BREAK SPACE}min</time>")


def test_a_time_says_its_zone_once() -> None:
    found = moments.span(NOW - timedelta(days=1), NOW)
    assert found.striptags() == "19 Nov 2026 09:26 to 20 Nov 2026 09:26 UTC"


def test_a_text_with_moments_is_plain_in_files() -> None:
    assert moments.plain(moments.when(NOW, NOW) + " & on") == "09:26 UTC & on"
    assert moments.plain("a < b") == "a < b"


def test_times_of_messages_are_elements() -> None:
    found = moments.timed("14 < 15, received 2026-11-20 09:26 UTC (1 min)")
    assert found.startswith('14 &lt; 15, received <time datetime="2026-11-20T09:26:00+00:00"')
    assert moments.plain(found) == "14 < 15, received 20 Nov 2026 09:26 UTC (1 min)"


def test_a_figure_tells_the_script_its_moments() -> None:
    tick = When(NOW, Form.SHORT, NOW, bare=True)
    assert tick.text == "09:26"
    assert tick.attributes == ' data-at="2026-11-20T09:26:12+00:00" data-time="short" data-bare'
