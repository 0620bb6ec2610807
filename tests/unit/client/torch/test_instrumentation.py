"""Hooks fit the installed frameworks, and record loaders and checkpoints between steps.

CI tests the pinned versions; a nightly run tests the newest ones.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extras import of_real_jobs
from tests.unit.client.torch.conftest import Seen

torch = of_real_jobs("torch")

from paceline_client.torch.instrumentation import INSTRUMENTATIONS  # noqa: E402
from paceline_client.torch.instrumentation.base import Hook, Instrumentation, Job, Level  # noqa: E402
from paceline_client.torch.instrumentation.loop import BETWEEN  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402
from paceline_client.torch.monitor import Monitor  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from paceline_client.torch.timelines import HostTimeline  # noqa: E402
from tests.conftest import skip_or_fail  # noqa: E402

HOOKS = [hook for target in INSTRUMENTATIONS for hook in target.hooks]
PINNED = Path(__file__).parents[4] / "requirements" / "real-jobs.txt"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.where)
def test_a_hook_fits_the_version_at_hand(hook: Hook) -> None:
    package = re.split("[.:]", hook.where)[0]
    if importlib.util.find_spec(package) is None:
        skip_or_fail(f"{package} is not installed")
    with warnings.catch_warnings():
        # Importing megatron-core warns about missing optional packages.
        warnings.simplefilter("ignore")
        assert hook.fault() is None


def test_the_version_at_hand_is_the_pinned_one() -> None:
    pinned = re.search(r"^torch==([\d.]+)", PINNED.read_text(), re.MULTILINE)
    assert pinned is not None
    assert torch.__version__.partition("+")[0] == pinned[1]


def unmodified_job() -> Job:
    return Job(Tap(HostTimeline()), Layout())


def wrapped(_job: Job, original: object) -> object:
    del original
    return lambda tensors: ("wrapped", tensors)


@pytest.mark.parametrize(
    ("where", "parameters", "says"),
    [
        ("torch.autograd:backward", ("tensors", "more"), "takes (tensors, grad_tensors"),
        ("torch.autograd:backwards", (), "has no attribute"),
        ("torch.no_such_module:f", (), "No module named"),
    ],
)
def test_what_does_not_fit_is_left_out_with_a_warning_that_names_it(
    caplog: pytest.LogCaptureFixture, where: str, parameters: tuple[str, ...], says: str
) -> None:
    before = torch.autograd.backward
    hook = Hook(where, parameters, Level.COMPUTE, wrapped)  # type: ignore[arg-type]
    target = Instrumentation("sample", "a sample", lambda _: True, (hook,))
    with caplog.at_level(logging.WARNING, "paceline_client"):
        undo, left_out = target.attach(unmodified_job(), Level.ALL)

    assert (undo, left_out) == ([], [where])
    assert where in caplog.text
    assert says in caplog.text
    assert torch.autograd.backward is before


def test_a_hook_is_taken_off_again_unless_other_code_has_wrapped_it_since() -> None:
    before = torch.autograd.backward
    hook = Hook("torch.autograd:backward", ("tensors",), Level.P2P, wrapped)  # type: ignore[arg-type]
    target = Instrumentation("sample", "a sample", lambda _: True, (hook,))
    assert target.attach(unmodified_job(), Level.COMPUTE) == ([], [])
    (undo,), _ = target.attach(unmodified_job(), Level.P2P)
    assert torch.autograd.backward("x") == ("wrapped", "x")
    other = torch.autograd.backward = lambda *_: None
    undo()
    assert torch.autograd.backward is other
    torch.autograd.backward = before


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

    # The last call ends with StopIteration, and is not recorded.
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


def test_saving_in_the_background_is_not_recorded(tap: Tap, seen: Seen) -> None:
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


def test_an_operation_that_raises_is_not_recorded_but_the_next_one_is(tap: Tap, seen: Seen) -> None:
    with pytest.raises(RuntimeError), tap.between("checkpoint"):
        raise RuntimeError
    tap.add_aside("gc", tap.now(), tap.now())

    assert seen.names() == ["gc"]
