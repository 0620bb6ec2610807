from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from app.system.collector import REQUEST_OBJECTS, answering, loading

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
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("own_thresholds")
def test_a_server_is_not_gone_through_for_a_page_of_thousands_of_objects() -> None:
    started_with = [[number] for number in range(1000)]
    answering()
    assert gc.get_freeze_count() > len(started_with)
    before = sum(generation["collections"] for generation in gc.get_stats())
    page = [[number] for number in range(REQUEST_OBJECTS // 2)]
    assert sum(generation["collections"] for generation in gc.get_stats()) == before, len(page)
