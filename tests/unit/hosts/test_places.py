"""Places of GPUs: they identify a machine whose name is a guess, and show that a GPU has moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import SessionMeta
from app.hosts.places import BY_GPU, Place, moved_gpus, with_known_hosts

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def meta(hosts: list[str], gpus: list[str], *guessed: str) -> SessionMeta:
    said: dict[str, Any] = {
        "dp": len(hosts),
        "pp": 1,
        "hosts": {str(rank): host for rank, host in enumerate(hosts)},
        "gpu_uuids": {str(rank): gpu for rank, gpu in enumerate(gpus)},
        "guessed_hosts": dict.fromkeys(guessed, "hostname"),
    }
    return parse_metadata(said)


def place(host: str, days: float = 1, *, guessed: bool = False, since: float = 9) -> Place:
    return Place(host, guessed, NOW - since * DAY, NOW - days * DAY)


def test_a_guessed_host_has_the_name_under_which_its_gpus_are_known() -> None:
    said = meta(["pod-1", "pod-1", "node-8"], ["a", "b", "c"], "pod-1")
    found = with_known_hosts(said, {"a": [place("node-7"), place("node-6", 5)]})
    assert found.hosts == {0: "node-7", 1: "node-7", 2: "node-8"}
    assert found.whereabouts.guessed_hosts == {"node-7": BY_GPU}
    assert with_known_hosts(said, {}) == said


def test_most_of_the_gpus_decide_and_a_name_in_use_is_no_guess() -> None:
    said = meta(["pod-1", "pod-1", "pod-1"], ["a", "b", "c"], "pod-1")
    known = {"a": [place("node-9")], "b": [place("node-7")], "c": [place("node-7")]}
    assert set(with_known_hosts(said, known).hosts.values()) == {"node-7"}
    mixed = meta(["pod-1", "node-7"], ["a", "b"], "pod-1")
    found = with_known_hosts(mixed, {"a": [place("node-7")]})
    assert (set(found.hosts.values()), found.whereabouts.guessed_hosts) == ({"node-7"}, {})


def test_a_host_that_is_no_guess_keeps_its_name() -> None:
    said = meta(["node-8"], ["a"])
    assert with_known_hosts(said, {"a": [place("node-7")]}) is said


def test_a_gpu_on_another_node_than_before_has_moved() -> None:
    said = meta(["node-8", "node-8"], ["a", "b"])
    known = {"a": [place("node-7", 2), place("node-6", 5)], "b": [place("node-8")]}
    [moved] = moved_gpus(said, known, NOW)
    assert (moved.rank, moved.uuid, moved.before) == (0, "a", "node-7")
    assert moved.last_seen == "2026-11-18T12:00:00+00:00"


def test_a_gpu_is_shown_as_moved_for_a_month() -> None:
    said = meta(["node-8"], ["a"])
    for since, count in ((29, 1), (31, 0)):
        known = {"a": [place("node-8", 1, since=since), place("node-7", since, since=90)]}
        assert len(moved_gpus(said, known, NOW)) == count


def test_guesses_later_places_and_domains_are_no_moves() -> None:
    known = {"a": [place("node-7", 2)]}
    assert moved_gpus(meta(["pod-1"], ["a"], "pod-1"), known, NOW) == ()
    assert moved_gpus(meta(["node-8"], ["a"]), {"a": [place("pod-1", guessed=True)]}, NOW) == ()
    assert moved_gpus(meta(["node-8"], ["a"]), {"a": [place("node-7", -1)]}, NOW) == ()
    assert moved_gpus(meta(["node-7.example.org"], ["a"]), known, NOW) == ()
