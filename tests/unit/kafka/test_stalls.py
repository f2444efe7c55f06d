"""When a partition counts as one that is no longer read."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from paceline.kafka.stalls import StallWatch


class Group:
    """A fake of librdkafka's consumer: two partitions with these ends, of which these offsets are committed."""

    def __init__(self) -> None:
        self.ends = {0: 10, 1: 10}
        self.away: set[int] = set()
        self.commits = {0: 10, 1: -1001}

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("t", number) for number in self.ends]

    def get_watermark_offsets(self, partition: TopicPartition, _seconds: float) -> tuple[int, int]:
        if partition.partition in self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, self.ends[partition.partition]

    def committed(self, partitions: list[TopicPartition], _seconds: float) -> list[TopicPartition]:
        return [TopicPartition("t", at.partition, self.commits[at.partition]) for at in partitions]


@pytest.fixture
def group() -> Any:
    return Group()


@pytest.fixture
def watch() -> StallWatch:
    return StallWatch()


def test_one_that_is_behind_twice_and_silent_meanwhile(group: Any, watch: StallWatch) -> None:
    watch.heard(0, 10)
    watch.heard(1, 4)
    assert watch.stalled(group) is None, "both were heard of"
    assert watch.stalled(group) is None, "it is behind for the first time"
    assert watch.stalled(group) == 1


def test_one_that_moves_is_not(group: Any, watch: StallWatch) -> None:
    watch.heard(0, 10)
    for read_to in range(4, 9):
        watch.heard(1, read_to)
        assert watch.stalled(group) is None
        assert watch.stalled(group) is None


def test_one_of_which_nothing_ever_came_counts_from_its_commit(group: Any, watch: StallWatch) -> None:
    assert [watch.stalled(group) for _ in range(2)] == [None, 1]
    watch.forget([1])
    group.commits[1] = 10
    assert [watch.stalled(group) for _ in range(3)] == [None, None, None]


def test_brokers_that_do_not_answer_are_no_stall(group: Any, watch: StallWatch) -> None:
    assert watch.stalled(group) is None
    group.away = {0, 1}
    assert [watch.stalled(group) for _ in range(3)] == [None, None, None]
    group.away = set()
    assert [watch.stalled(group) for _ in range(2)] == [None, 1], "counted anew"


def test_a_leader_that_alone_does_not_answer_may_no_longer_be_it(group: Any, watch: StallWatch) -> None:
    group.away = {1}
    assert [watch.stalled(group) for _ in range(2)] == [None, 1]


def test_what_was_taken_away_and_what_is_not_read_on_purpose_counts_anew(group: Any, watch: StallWatch) -> None:
    assert watch.stalled(group) is None
    watch.forget([1])
    assert watch.stalled(group) is None
    watch.put_off()
    assert [watch.stalled(group) for _ in range(2)] == [None, 1]


def test_until_the_partition_moves_each_look_comes_after_twice_the_time(
    group: Any, watch: StallWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("paceline.kafka.stalls.time.monotonic", lambda: now[0])
    watch.put_off()

    def seconds_between_looks() -> list[float]:
        """Whoever finds a stall joins anew, and then reads nothing again."""
        waited: list[float] = []
        while len(waited) < 12:
            began = now[0]
            now[0] = watch._due
            waited.append(now[0] - began)
            assert not watch.is_due(), "what comes may wait behind the records of another partition"
            watch.ran_dry()
            assert watch.is_due()
            if watch.stalled(group) is not None:
                watch.forget([0, 1])
            assert not watch.is_due()
        return waited

    assert seconds_between_looks() == [15, 15, 30, 30, 60, 60, 120, 120, 240, 240, 480, 480]
    watch.heard(1, 1)
    watch.stalled(group)
    assert watch._due - now[0] == 15
