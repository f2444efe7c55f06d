"""The packaged Redis: one per run for everyone, and private ones that can be broken."""

from __future__ import annotations

import pytest
import redis

from paceline.testing import RedisServer


def test_each_test_gets_an_empty_database_of_the_shared_server(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_no_test_sees_what_another_left(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.get("left") is None


def test_data_and_the_port_survive_stop_kill_and_restart(own_redis: RedisServer) -> None:
    url = own_redis.url
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.set("a", "1")
        own_redis.restart()
        client.set("b", "2")
        own_redis.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        own_redis.start()
        assert own_redis.url == url
        assert client.mget("a", "b") == ["1", "2"]


def test_a_paused_server_answers_nothing_until_resumed(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url, socket_timeout=0.2, retry=None) as client:
        own_redis.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        own_redis.resume()
        assert client.ping()


def test_a_server_that_is_not_durable_starts_empty() -> None:
    with RedisServer(durable=False) as server, server.client() as client:
        client.set("a", "1")
        server.restart()
        assert client.get("a") is None
