from __future__ import annotations

from benchmarks.support.weighing import Weighed, elements, table


def test_elements_are_those_of_the_page_before_any_script() -> None:
    html = (
        '<!doctype html><html><body><p>a<br>b</p><script>"<p>"</script><img src="x"/></body></html>'
    )

    assert elements(html) == 6


def test_the_table_has_a_line_for_each_page_in_columns() -> None:
    pages = [
        Weighed("small", "fleet", 9_876, 51_000, 412, 3, 0.0042, 0.0031),
        Weighed("1,000 × 10", "fleet", 123_456, 2_000_000, 34_567, 3, 1.25, 0.5),
    ]
    lines = table(pages).splitlines()

    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == [
        "small",
        "fleet",
        "9.9",
        "kB",
        "51",
        "kB",
        "412",
        "3",
        "4",
        "ms",
        "3",
        "ms",
    ]
    assert "34,567" in lines[2]
    assert "1250 ms" in lines[2]
