"""Hangs in a browser: files dropped on a job's page become the page that names the ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from app.hangs.receive import MOST_AT_ONCE_BYTES
from app.platform.database.task_runs import READ_HANG, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.support.hanging import (
    Hanging,
    archived,
    as_json,
    large_archive,
    pickled,
    ras,
    ras_of_many,
    stack_dump,
)
from tests.support.served import client_of
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor

# Limits on the page of a hang, for any number of ranks.
MOST_BOXES = 12
MOST_ELEMENTS = 1_000
STAGES = [tuple(range(8)), tuple(range(8, 16))]
PAIRS = [(rank, rank + 8) for rank in range(8)]
# Two ranks of stage 1, whose collectives come first, never enter its second collective.
HANGING = Hanging(
    16,
    [STAGES, PAIRS, STAGES, PAIRS],
    host_stops={9: 2, 14: 2},
    ahead=1,
    begin_ns=time.time_ns() - 300 * 10**9,
)
LOADING = stack_dump(
    ("decode_batch", "tokenizer_ext.pyx", 41),
    ("collate", "data/packing.py", 212),
    ("__next__", "torch/utils/data/dataloader.py", 708),
    ("train", "training.py", 2203),
)
WAITING = stack_dump(
    ("all_to_all_single", "torch/distributed/distributed_c10d.py", 4412),
    ("token_dispatch", "megatron/core/transformer/moe/token_dispatcher.py", 640),
    ("forward", "megatron/core/transformer/moe/moe_layer.py", 171),
)


def dumps() -> dict[str, bytes]:
    found = {f"_dump_{rank}": pickled(dump) for rank, dump in HANGING.dumps().items()}
    found |= {f"stack_{rank}.json": LOADING for rank in (9, 14)}
    found |= {f"stack_{rank}.json": WAITING for rank in (8, 10, 11, 12, 13, 15)}
    return found | {"ras.json": as_json(ras(HANGING))}


@in_every_look
def test_the_page_of_a_hang(site: str, visitor: Visitor, look: Look) -> None:
    with client_of(site) as client:
        answer = client.post("/api/v1/jobs/moe/hangs", content=archived(dumps())).json()
    page = visitor.open(f"{site}/hangs/{answer['hang']}", look)
    expect(page.locator("h1")).to_have_text(
        "14 ranks wait for ranks 9 and 14, which never entered nccl:_reduce_scatter_base 2"
    )
    expect(page.locator(".facts")).to_contain_text("10.0.0.1 GPU 1, 10.0.0.1 GPU 6")
    expect(page.locator(".waits:visible .stuck")).to_have_count(2)
    expect(page.locator(".frames").first).to_contain_text("tokenizer_ext.pyx:41")
    expect(page.locator("main")).to_contain_text("the same line on 2 ranks")
    keep(page, f"hang-{look.name}")
    expect_well_made(page, site, look)


def test_files_dropped_on_a_job_become_a_hang(
    site: str, container: Container, visitor: Visitor, tmp_path: Path
) -> None:
    store(container, small_trace(), job="moe")
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name, body in dumps().items():
        (folder / name).write_bytes(body)
    page = visitor.open(f"{site}/jobs/moe")
    page.get_by_label("Dumps of a hang").set_input_files(sorted(folder.iterdir()))
    expect(page.locator("h1")).to_contain_text("14 ranks wait for ranks 9 and 14")

    visitor.expects("422")
    page.goto(f"{site}/jobs/moe")
    page.get_by_text("Send the dumps of a hang").click()
    (folder / "_dump_3").write_bytes(b"\x80\x02cos\nsystem\n.")
    expect(page.locator("#hangs")).to_contain_text("1\u00a0hang")
    page.get_by_label("Dumps of a hang").set_input_files(sorted(folder.iterdir()))
    expect(page.locator("#hangs [role=alert]")).to_contain_text("_dump_3: The opcode GLOBAL")
    keep(page, "job-with-hangs")


def _work(container: Container) -> None:
    """Run the queued tasks, in place of a worker."""
    with container.reading() as tx:
        [run] = tx.session.execute(
            select(TaskRun.id).where(TaskRun.kind == READ_HANG, TaskRun.state == "queued")
        ).scalars()
    execute(container, LeaseKeeper(container), run)


@in_every_look
def test_the_sender_of_a_large_archive_sees_that_it_waits_and_then_its_page(
    site: str, container: Container, visitor: Visitor, look: Look
) -> None:
    store(container, small_trace(), job="moe")
    page = visitor.open(f"{site}/jobs/moe", look)
    # The panel stays folded, but shows the upload's outcome.
    panel = page.locator("[data-hang-files]")
    field = page.get_by_label("Dumps of a hang")
    nothing = archived({"notes": b" " * (MOST_AT_ONCE_BYTES + 1)})
    field.set_input_files({"name": "notes.zip", "mimeType": "application/zip", "buffer": nothing})
    expect(panel.locator(".said")).to_have_text("The files wait to be read…")
    expect(page).to_have_url(f"{site}/jobs/moe")
    _work(container)
    expect(panel.locator(".said")).to_contain_text("There is neither a dump")

    body = large_archive()
    field.set_input_files({"name": "dumps.zip", "mimeType": "application/zip", "buffer": body})
    expect(panel.locator(".said")).to_have_text("The files wait to be read…")
    expect(panel.locator(".said")).to_be_visible()
    keep(page, f"hang-waits-{look.name}")
    expect_well_made(page, site, look)
    _work(container)
    expect(page.locator("h1")).to_contain_text("3 ranks wait for rank 2")


@in_every_look
def test_the_page_of_a_hang_of_sixteen_thousand_ranks_can_be_read(
    site: str, visitor: Visitor, look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = (9003, 12_000)
    files = {"ras.json": as_json(ras_of_many(16_384, behind))}
    files |= {f"stack_{rank}.json": LOADING for rank in behind}
    files |= {f"stack_{rank}.json": WAITING for rank in range(512)}
    with client_of(site) as client:
        answer = client.post("/api/v1/jobs/wide/hangs", content=archived(files)).json()
    began_s = time.monotonic()
    page = visitor.open(f"{site}/hangs/{answer['hang']}", look)
    expect(page.locator("h1")).to_contain_text("16,382 ranks wait for ranks 9003 and 12000")
    took_s = time.monotonic() - began_s
    # Ranks are folded: few boxes, lines and elements for any number of ranks.
    assert page.locator(".waits:visible g").count() <= MOST_BOXES
    assert page.evaluate("document.querySelectorAll('*').length") <= MOST_ELEMENTS
    expect(page.locator(".frames")).to_have_count(2)
    keep(page, f"hang-of-many-{look.name}")
    expect_well_made(page, site, look)
    with capsys.disabled():
        print(f"\na hang of 16,384 ranks, {look.name}: there in {took_s:.1f} s")  # noqa: T201
