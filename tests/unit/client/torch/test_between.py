"""What a rank does between steps, recorded by itself and by a job's own spans."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.extras import of_real_jobs
from tests.unit.client.torch.conftest import Seen

torch = of_real_jobs("torch")

from paceline_client.torch.host_timeline import HostTimeline  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402
from paceline_client.torch.monitor import Monitor  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from paceline_client.torch.targets.between import BETWEEN  # noqa: E402
from paceline_client.torch.targets.kind import Job, Level  # noqa: E402

WAIT_S = 0.02


class SlowData:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        time.sleep(WAIT_S)
        return index


@pytest.fixture
def tap(seen: Seen) -> Iterator[Tap]:
    tap = Tap(HostTimeline())
    undo, left_out = BETWEEN.attach(Job(tap, Layout()), Level.COMPUTE)
    assert left_out == []
    tap.on, tap.sink, tap.step = True, seen, 7
    yield tap
    for one in undo:
        one()


def loaded() -> list[int]:
    return [int(batch) for batch in torch.utils.data.DataLoader(SlowData())]


def test_each_batch_of_a_loader_is_recorded(tap: Tap, seen: Seen) -> None:
    assert loaded() == [0, 1]

    # The last one finds that there are no more, which ends with an exception.
    assert seen.names() == ["data-loading"] * 2
    assert all(duration >= WAIT_S * 1e9 for _, _, duration, _, _, _ in seen.operations)
    assert {step for *_, step, _, _ in seen.operations} == {7}
    assert tap.sink is seen


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_saved_checkpoint_is_recorded_once(tap: Tap, seen: Seen, tmp_path: object) -> None:
    torch.save({"weights": torch.zeros(3)}, io.BytesIO())
    torch.distributed.checkpoint.save(
        {"weights": torch.zeros(3)}, checkpoint_id=str(tmp_path), no_dist=True
    )

    assert seen.names() == ["checkpoint", "checkpoint"]
    assert tap.sink is seen


def test_what_is_saved_in_the_background_holds_up_no_step(tap: Tap, seen: Seen) -> None:
    saving = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    saving.start()
    saving.join()

    assert tap.sink is seen
    assert seen.names() == []


def test_nothing_is_recorded_where_the_session_is_over(tap: Tap, seen: Seen) -> None:
    tap.sink = None
    loaded()
    tap.on = False
    torch.save({}, io.BytesIO())

    assert seen.names() == []


def test_what_is_computed_meanwhile_belongs_to_no_step(tap: Tap, seen: Seen) -> None:
    monitor = Monitor(tap)
    with monitor.between("evaluation"), tap.computing("forward-compute", 0, None):
        loaded()
    with tap.computing("forward-compute", 0, None):
        pass

    assert seen.names() == ["evaluation", "forward-compute"]


def test_a_step_that_ends_meanwhile_does_not_bring_its_session_back(tap: Tap, seen: Seen) -> None:
    with tap.between("evaluation"):
        tap.step += 1

    assert tap.sink is None
    assert seen.names() == []


def test_what_raises_is_not_recorded_and_the_next_operation_is(tap: Tap, seen: Seen) -> None:
    with pytest.raises(RuntimeError), tap.between("checkpoint"):
        raise RuntimeError
    tap.add_aside("gc", tap.now(), tap.now())

    assert seen.names() == ["gc"]
