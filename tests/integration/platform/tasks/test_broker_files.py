"""The broker of files gives each message to one consumer, completely."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from kombu import Queue

from app.platform.broker import ANALYSIS_QUEUE, IO_QUEUE, make_celery
from app.platform.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kombu.connection import Connection


def _connection(tmp_path: Path) -> Connection:
    settings = Settings(data_dir=tmp_path / "data")
    return make_celery(settings).connection_for_read()


def _put(connection: Connection, texts: Iterable[str]) -> None:
    with connection.Producer() as producer:
        for text in texts:
            producer.publish(text, exchange="", routing_key=ANALYSIS_QUEUE)


def _take_all(connection: Connection, name: str) -> list[str]:
    queue = Queue(name, exchange="", routing_key=name)(connection.default_channel)
    taken: list[str] = []
    while message := queue.get(no_ack=True):
        taken.append(message.payload)
    return taken


def test_messages_come_in_order_and_only_on_their_queue(tmp_path: Path) -> None:
    sent = [str(uuid.uuid4()) for _ in range(20)]
    with _connection(tmp_path) as connection:
        _put(connection, sent)
        assert _take_all(connection, IO_QUEUE) == []
        assert _take_all(connection, ANALYSIS_QUEUE) == sent
    assert list((tmp_path / "data" / "broker").glob("*.*")) == []


def test_two_takers_share_the_messages_of_a_writer(tmp_path: Path) -> None:
    sent = {str(uuid.uuid4()) for _ in range(300)}
    taken: list[list[str]] = [[], []]
    done = threading.Event()

    def take(mine: list[str]) -> None:
        with _connection(tmp_path) as connection:
            while not done.is_set():
                mine.extend(_take_all(connection, ANALYSIS_QUEUE))
            mine.extend(_take_all(connection, ANALYSIS_QUEUE))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    with _connection(tmp_path) as connection:
        _put(connection, sent)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(taken[0] + taken[1]) == sorted(sent)


def test_directory_of_the_broker_is_closed_to_others(tmp_path: Path) -> None:
    with _connection(tmp_path):
        assert (tmp_path / "data" / "broker").stat().st_mode & 0o077 == 0
