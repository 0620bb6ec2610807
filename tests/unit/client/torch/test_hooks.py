"""Every function that is attached to is what it is taken for.

CI holds the versions that are pinned, and every night the newest ones are held too.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from pathlib import Path

import pytest

from tests.support.extras import of_real_jobs

torch = of_real_jobs("torch")

from paceline_client.torch.host_timeline import HostTimeline  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from paceline_client.torch.targets.kind import Hook, Job, Level, Target  # noqa: E402
from paceline_client.torch.targets.registry import TARGETS  # noqa: E402
from tests.conftest import skip_or_fail  # noqa: E402

HOOKS = [hook for target in TARGETS for hook in target.hooks]
PINNED = Path(__file__).parents[4] / "requirements" / "real-jobs.txt"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.where)
def test_a_hook_fits_the_version_at_hand(hook: Hook) -> None:
    package = re.split("[.:]", hook.where)[0]
    if importlib.util.find_spec(package) is None:
        skip_or_fail(f"{package} is not installed")
    with warnings.catch_warnings():
        # megatron-core tells what else it would like to have.
        warnings.simplefilter("ignore")
        assert hook.fault() is None


def test_the_version_at_hand_is_the_pinned_one() -> None:
    pinned = re.search(r"^torch==([\d.]+)", PINNED.read_text(), re.MULTILINE)
    assert pinned is not None
    assert torch.__version__.partition("+")[0] == pinned[1]


def job() -> Job:
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
    target = Target("sample", "a sample", lambda _: True, (hook,))
    with caplog.at_level(logging.WARNING, "paceline_client"):
        undo, left_out = target.attach(job(), Level.ALL)

    assert (undo, left_out) == ([], [where])
    assert where in caplog.text
    assert says in caplog.text
    assert torch.autograd.backward is before


def test_a_hook_is_taken_off_again_unless_other_code_has_wrapped_it_since() -> None:
    before = torch.autograd.backward
    hook = Hook("torch.autograd:backward", ("tensors",), Level.P2P, wrapped)  # type: ignore[arg-type]
    target = Target("sample", "a sample", lambda _: True, (hook,))
    assert target.attach(job(), Level.COMPUTE) == ([], [])
    (undo,), _ = target.attach(job(), Level.P2P)
    assert torch.autograd.backward("x") == ("wrapped", "x")
    other = torch.autograd.backward = lambda *_: None
    undo()
    assert torch.autograd.backward is other
    torch.autograd.backward = before
