from __future__ import annotations

import gc

import pytest

from app.system.collector import loading


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
