from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from app.platform.resources import REQUEST_OBJECTS, SWITCH_S, answering, loading

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_what_is_loaded_is_not_looked_at_while_it_is_nor_afterwards() -> None:
    frozen = gc.get_freeze_count()
    with loading():
        assert not gc.isenabled()
        loaded = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(loaded)


def test_the_collector_is_back_where_nothing_could_be_loaded() -> None:
    with pytest.raises(ModuleNotFoundError), loading():
        raise ModuleNotFoundError
    assert gc.isenabled()


@pytest.fixture
def own_thresholds() -> Iterator[None]:
    thresholds, switching_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(switching_s)
    gc.unfreeze()


@pytest.mark.usefixtures("own_thresholds")
def test_a_server_is_not_gone_through_for_a_page_of_thousands_of_objects() -> None:
    started_with = [[number] for number in range(1000)]
    answering()
    assert gc.get_freeze_count() > len(started_with)
    before = sum(generation["collections"] for generation in gc.get_stats())
    page = [[number] for number in range(REQUEST_OBJECTS // 2)]
    assert sum(generation["collections"] for generation in gc.get_stats()) == before, len(page)


@pytest.mark.usefixtures("own_thresholds")
def test_a_page_waits_for_the_interpreter_for_less_than_a_thread_computes_otherwise() -> None:
    answering()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert SWITCH_S < 0.005
