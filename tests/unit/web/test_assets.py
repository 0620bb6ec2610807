from __future__ import annotations

import gzip
import re
from pathlib import Path

import brotli
import pytest

from app.web.assets import PLOTLY_NAME, PLOTLY_PATH, STATIC_DIR, Assets


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets()


def address(assets: Assets, name: str) -> str:
    return assets.url(name).removeprefix("/static/")


def test_every_static_file_has_an_immutable_address(assets: Assets) -> None:
    for path in STATIC_DIR.rglob("*"):
        if path.is_file():
            name = path.relative_to(STATIC_DIR).as_posix()
            found = assets.find(address(assets, name), "")
            assert found is not None
            assert found.body == path.read_bytes()
            assert "immutable" in found.headers["Cache-Control"]


def test_the_plotly_bundle_is_that_of_the_installed_wheel(assets: Assets) -> None:
    found = assets.find(address(assets, PLOTLY_NAME), "")
    assert found is not None
    assert found.body == PLOTLY_PATH.read_bytes()


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip, deflate", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("identity", None),
        ("", None),
    ],
)
def test_files_go_out_in_the_best_encoding_that_is_taken(
    assets: Assets, accepted: str, encoding: str | None
) -> None:
    found = assets.find(address(assets, "css/paceline.css"), accepted)
    assert found is not None
    assert found.headers.get("Content-Encoding") == encoding
    assert found.headers["Vary"] == "Accept-Encoding"
    undo = {"br": brotli.decompress, "gzip": gzip.decompress, None: bytes}[encoding]
    assert undo(found.body) == (STATIC_DIR / "css" / "paceline.css").read_bytes()


@pytest.mark.parametrize(
    "asked", ["", "css/paceline.css", "0000/css/paceline.css", "../app/main.py"]
)
def test_there_is_nothing_at_other_addresses(assets: Assets, asked: str) -> None:
    assert assets.find(asked, "br") is None


def test_a_change_of_one_file_changes_the_address_of_all_but_plotly(tmp_path: Path) -> None:
    (tmp_path / "one.js").write_text("import './two.js'")
    (tmp_path / "two.js").write_text("1")
    before = Assets(tmp_path)
    (tmp_path / "two.js").write_text("2")
    after = Assets(tmp_path)
    assert before.url("one.js") != after.url("one.js")
    assert before.url(PLOTLY_NAME) == after.url(PLOTLY_NAME)


def test_the_style_that_plotly_would_insert_is_found(assets: Assets) -> None:
    assert re.fullmatch("[0-9a-f]{64}", assets.plotly_style)


def test_a_bundle_that_inserts_no_style_is_fine(tmp_path: Path) -> None:
    bundle = tmp_path / "plotly.min.js"
    bundle.write_text("window.Plotly = {}")
    static = tmp_path / "static"
    static.mkdir()
    assert Assets(static, bundle).plotly_style == ""


def test_modules_import_only_existing_modules() -> None:
    for path in (STATIC_DIR / "js").glob("*.js"):
        for imported in re.findall(r"from '(\./[^']+)'", path.read_text()):
            assert (path.parent / imported).is_file(), f"{path.name} imports {imported}"
