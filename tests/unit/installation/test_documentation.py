from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.installation.documentation import Site

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def built(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    for name, text in (
        ("index.html", "first"),
        ("alerts/index.html", "alerts"),
        ("assets/docs.css", "a {}"),
        ("notes.txt", "not of concern"),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (tmp_path / "secret.html").write_text("secret")
    return site


def test_pages_are_found_with_their_slash_and_files_by_name(built: Path) -> None:
    site = Site(built)
    found = {name: site.find(name) for name in ("", "alerts/", "assets/docs.css")}

    assert {name: page and page.body for name, page in found.items()} == {
        "": b"first",
        "alerts/": b"alerts",
        "assets/docs.css": b"a {}",
    }
    assert found["assets/docs.css"] is not None
    assert found["assets/docs.css"].headers["Content-Type"] == "text/css; charset=utf-8"
    assert site.is_folder("alerts")
    assert site.find("alerts") is None


@pytest.mark.parametrize(
    "address", ["../secret.html", "alerts/../../secret.html", "/etc/passwd", "notes.txt", "none/"]
)
def test_nothing_else_is_read(built: Path, address: str) -> None:
    assert Site(built).find(address) is None


def test_another_content_has_another_tag(built: Path) -> None:
    site = Site(built)
    before, same = site.find(""), site.find("")
    (built / "index.html").write_text("second")
    after = site.find("")
    assert before is not None
    assert same is not None
    assert after is not None
    assert before.tag == same.tag != after.tag


def test_without_a_build_there_is_none(tmp_path: Path) -> None:
    site = Site(tmp_path / "none")
    assert not site.is_built
    assert site.find("") is None
