"""`paceline hang FILES --send JOB`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.hang import send_files
from tests.support.hanging import Hanging, pickled

if TYPE_CHECKING:
    from pathlib import Path

    import httpx
    import pytest

HANGING = Hanging(4, [[(0, 1, 2, 3)], [(0, 1, 2, 3)]], host_stops={3: 1})


def test_files_are_sent_and_the_verdict_is_printed(
    client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, dump in HANGING.dumps().items():
        (tmp_path / f"_dump_{rank}").write_bytes(pickled(dump))
    (tmp_path / "README.md").write_text("# What these are")
    send_files([tmp_path], "moe", str(client.base_url))

    out, err = capsys.readouterr()
    # The test's server logs to the same output.
    sentence, url = out.splitlines()[-2:]
    assert sentence.startswith("3 ranks wait for rank 3.")
    assert client.get(url).status_code == 200
    assert "README.md: not read" in err
