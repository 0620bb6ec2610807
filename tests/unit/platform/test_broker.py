"""The dispatcher never blocks its caller or raises, for any fault of the broker."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from app.platform import broker as dispatch
from app.platform.broker import Dispatcher
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = "analyze_session"


class Broker:
    """A broker that can be slow or unavailable, and stores the messages that it gets."""

    def __init__(self) -> None:
        self.sent: list[uuid.UUID] = []
        self.tries = 0
        self.away = False
        self.open = threading.Event()
        self.open.set()

    def send(self, run_id: uuid.UUID, kind: str) -> None:
        assert kind == KIND
        self.tries += 1
        self.open.wait()
        if self.away:
            raise ConnectionError("refused")
        self.sent.append(run_id)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.open.set()


@pytest.fixture
def dispatcher(broker: Broker) -> Iterator[Dispatcher]:
    made = Dispatcher(broker.send)
    yield made
    broker.open.set()
    made.close()


def _publish(dispatcher: Dispatcher, count: int) -> list[uuid.UUID]:
    ids = [uuid.uuid4() for _ in range(count)]
    for run_id in ids:
        dispatcher.publish(run_id, KIND)
    return ids


def test_messages_go_out_in_order(dispatcher: Dispatcher, broker: Broker) -> None:
    ids = _publish(dispatcher, 20)
    wait_for(lambda: broker.sent == ids, "all messages")


def test_caller_is_not_held_by_a_broker_that_hangs(dispatcher: Dispatcher, broker: Broker) -> None:
    broker.open.clear()
    _publish(dispatcher, dispatch.WAITING + 50)  # returns at all
    assert broker.sent == []
    assert dispatcher.waiting <= dispatch.WAITING


def test_after_a_failure_nothing_is_tried_for_a_while(
    dispatcher: Dispatcher, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BREAK_S", 3600.0)
    broker.away = True
    _publish(dispatcher, 30)
    wait_for(lambda: dispatcher.waiting == 0 and not dispatcher.healthy, "dropped messages")
    assert broker.tries == 1


def test_broker_that_comes_back_is_used_again(
    dispatcher: Dispatcher, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BREAK_S", 0.0)
    broker.away = True
    _publish(dispatcher, 1)
    wait_for(lambda: not dispatcher.healthy, "failure")
    broker.away = False
    ids = _publish(dispatcher, 2)
    wait_for(lambda: broker.sent == ids, "messages")
    assert dispatcher.healthy


def test_closing_sends_waiting_messages(dispatcher: Dispatcher, broker: Broker) -> None:
    ids = _publish(dispatcher, 50)
    dispatcher.close()
    assert broker.sent == ids


def test_closing_does_not_wait_for_a_broker_that_hangs(
    dispatcher: Dispatcher, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "CLOSE_S", 0.05)
    broker.open.clear()
    _publish(dispatcher, 3)
    dispatcher.close()
    assert broker.sent == []


def test_closed_dispatcher_drops_without_complaint(broker: Broker) -> None:
    dispatcher = Dispatcher(broker.send)
    dispatcher.close()
    _publish(dispatcher, 1)
    dispatcher.close()
    assert broker.tries == 0
