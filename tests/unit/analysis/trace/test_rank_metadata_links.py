from __future__ import annotations

import pytest

from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.rank_metadata import MAX_ADDRESS_CHARS, MAX_LINKS, valid_links
from app.errors import InvalidMetadataError

SIZES = {"dp": 2, "pp": 1}
RUN = "https://wandb.ai/team/llm/runs/4711?workspace=user#charts"


def test_links_are_kept_as_they_are() -> None:
    meta = parse_metadata({**SIZES, "links": {"W&B": RUN, "logs": "http://logs.local:3000/x"}})
    assert meta.links == {"W&B": RUN, "logs": "http://logs.local:3000/x"}
    assert parse_metadata(metadata_document(meta)) == meta


@pytest.mark.parametrize(
    "links",
    [
        {"a": "javascript:alert(1)"},
        {"a": "JavaScript:alert(1)"},
        {"a": " https://x.example"},
        {"a": "https://x.example/\nb"},
        {"a": "data:text/html,x"},
        {"a": "//x.example/y"},
        {"a": "https:///y"},
        {"a": "https://user:secret@x.example"},
        {"a": "https://x.example\\@evil.example"},
        {"a": "https://x.example:port/"},
        {"a": "https://[::1"},
        {"a": "https://x.example/" + "y" * MAX_ADDRESS_CHARS},
        {"a": 7},
        {"": RUN},
        {"a\u202eb": RUN},
        {str(number): RUN for number in range(MAX_LINKS + 1)},
    ],
    ids=lambda links: str(next(iter(links.items())))[:40],
)
def test_an_unsafe_link_is_refused(links: dict[str, object]) -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        parse_metadata({**SIZES, "links": links})
    assert caught.value.stable_code == "metadata.bad_link"
    assert caught.value.faults[0].column == "links"
    # Stored invalid links are not shown either.
    assert len(valid_links(links)) <= (MAX_LINKS if len(links) > 1 else 0)


@pytest.mark.parametrize("said", [None, "https://x.example", ["https://x.example"], {}])
def test_metadata_that_is_no_mapping_has_no_links(said: object) -> None:
    assert valid_links(said) == {}
