from __future__ import annotations

import pytest

from app.analysis.trace.parallelism import layers_per_stage


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([4, 4, 3], (4, 4, 3)),
        ([[4], [4], [3]], (4, 4, 3)),
        ([4, 4], None),
        ([4, 4, 0], None),
        ([4, 4, True], None),
        ("443", None),
        (None, None),
    ],
)
def test_layers_of_the_metadata(given: object, expected: tuple[int, ...] | None) -> None:
    assert layers_per_stage({"layers": given}, 3) == expected
