"""Limits on wrong passwords: the counters of names and addresses, and the admitted guesses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app.access.guesses import AT_A_NAME, OF_A_PEER, OF_A_PEER_AT_A_NAME, buckets_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_guess_counts_for_its_name_its_peer_and_both() -> None:
    buckets = buckets_of("ada", "192.0.2.7")
    assert {bucket.allowance for bucket in buckets} == {AT_A_NAME, OF_A_PEER, OF_A_PEER_AT_A_NAME}
    assert [bucket.key for bucket in buckets] == sorted(bucket.key for bucket in buckets)
    elsewhere = {bucket.key for bucket in buckets_of("ada", "192.0.2.8")}
    assert len(elsewhere & {bucket.key for bucket in buckets}) == 1
    another = {bucket.key for bucket in buckets_of("bob", "192.0.2.7")}
    assert len(another & {bucket.key for bucket in buckets}) == 1


def test_names_that_do_not_exist_make_no_more_buckets_than_there_are() -> None:
    keys = {
        bucket.key
        for number in range(20_000)
        for bucket in buckets_of(f"name {number}", "")
        if bucket.allowance is AT_A_NAME
    }
    assert len(keys) <= 4096


def test_after_the_last_wait_a_guess_is_free_again() -> None:
    minute = OF_A_PEER_AT_A_NAME.every
    full = NOW + OF_A_PEER_AT_A_NAME.at_once * minute
    assert OF_A_PEER_AT_A_NAME.wait_s(full, NOW) == minute.total_seconds()
    assert OF_A_PEER_AT_A_NAME.wait_s(full, NOW + timedelta(hours=1)) == 0.0
