"""Our messages are those of `envoy-data-plane`, byte by byte."""

from __future__ import annotations

from datetime import timedelta

from paceline.server.envoy import servicer
from paceline.server.envoy.messages import OK, OVER_LIMIT, UNITS, RateLimitRequest, RateLimitResponse


def test_a_request_of_envoy_is_read() -> None:
    # Imported here: `paceline.server.envoy.messages` lists which of its warnings are ignored.
    from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
        RateLimitDescriptor,
        RateLimitDescriptorEntry,
        RateLimitDescriptorRateLimitOverride,
    )
    from envoy_data_plane.envoy.service.ratelimit import v3
    from envoy_data_plane.envoy.type.v3 import RateLimitUnit

    written = v3.RateLimitRequest(
        domain="edge",
        descriptors=[
            RateLimitDescriptor(
                entries=[RateLimitDescriptorEntry("a", "b"), RateLimitDescriptorEntry("c", "ü")],
                limit=RateLimitDescriptorRateLimitOverride(requests_per_unit=42, unit=RateLimitUnit.HOUR),
                hits_addend=0,
                is_negative_hits=True,
            ),
            RateLimitDescriptor(entries=[RateLimitDescriptorEntry("d", "")]),
        ],
        hits_addend=7,
    )
    request = RateLimitRequest.FromString(bytes(written))
    assert (request.domain, request.hits_addend) == ("edge", 7)
    first, second = request.descriptors
    assert [(entry.key, entry.value) for entry in first.entries] == [("a", "b"), ("c", "ü")]
    assert (first.limit.requests_per_unit, first.limit.unit) == (42, UNITS["HOUR"])
    assert first.HasField("hits_addend")
    assert first.is_negative_hits
    assert not second.HasField("hits_addend")
    assert not second.HasField("limit")
    assert request.SerializeToString() == bytes(written)


def test_envoy_reads_our_answer() -> None:
    from envoy_data_plane.envoy.service.ratelimit import v3

    response = RateLimitResponse(overall_code=OVER_LIMIT)
    status = response.statuses.add(code=OVER_LIMIT, limit_remaining=3)
    status.duration_until_reset.seconds = 60
    status.current_limit.requests_per_unit = 5
    status.current_limit.unit = UNITS["MINUTE"]
    status.current_limit.name = "per-user"
    response.statuses.add(code=OK)
    response.response_headers_to_add.add(key="RateLimit", value="x")
    read = v3.RateLimitResponse.parse(response.SerializeToString())
    assert read.overall_code == v3.RateLimitResponseCode.OVER_LIMIT
    assert read.statuses[0] == v3.RateLimitResponseDescriptorStatus(
        code=v3.RateLimitResponseCode.OVER_LIMIT,
        current_limit=v3.RateLimitResponseRateLimit(
            name="per-user", requests_per_unit=5, unit=v3.RateLimitResponseRateLimitUnit.MINUTE
        ),
        limit_remaining=3,
        duration_until_reset=timedelta(seconds=60),
    )
    assert read.statuses[1].code == v3.RateLimitResponseCode.OK
    assert [(header.key, header.value) for header in read.response_headers_to_add] == [("RateLimit", "x")]


def test_a_short_request_is_parsed_once_and_a_long_one_is_not_kept() -> None:
    def message(value: str) -> bytes:
        request = RateLimitRequest(domain="edge")
        request.descriptors.add().entries.add(key="user", value=value)
        written: bytes = request.SerializeToString()
        return written

    assert servicer._parsed(message("ada")) is servicer._parsed(message("ada"))
    assert servicer._parsed(message("ada")) != servicer._parsed(message("bob"))
    long = message("x" * servicer.MAX_REMEMBERED_BYTES)
    assert servicer._parsed(long) == servicer._parsed(long)
    assert servicer._parsed(long) is not servicer._parsed(long)
    wrong = RateLimitRequest(domain="edge").SerializeToString()
    assert isinstance(servicer._parsed(wrong), servicer.BadRequest)
    assert isinstance(servicer._parsed(b"\xff"), servicer.BadRequest)
