"""Many events at once: one JSON object, or a stream of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2 as httpx

AT = "2027-05-01T00:00:00Z"
NDJSON = {"Content-Type": "application/x-ndjson"}


def lines(answer: httpx.Response) -> list[dict[str, object]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_batch_answers_in_order_and_fills_windows(http: httpx.Client) -> None:
    http.post("/admin/rate-limit/config", json={"configName": "batch", "maxPerWindow": 10, "windowSize": "PT1S"})
    events = [{"eventId": f"batch-{number}", "requestedTime": AT} for number in range(25)]
    body = {"configName": "batch", "events": [*events, events[0]]}
    results = http.post("/api/v1/slots/batch", json=body).json()["results"]
    assert [result["eventId"] for result in results] == [f"batch-{number}" for number in range(25)] + ["batch-0"]
    starts = [result["windowStart"] for result in results[:25]]
    assert [starts.count(start) for start in sorted(set(starts))] == [10, 10, 5]
    assert results[25] == results[0] | {"existing": True}
    assert http.post("/api/v1/slots/batch", json={"events": []}).json() == {"results": []}


def test_an_event_that_finds_no_room_is_an_error_in_its_place(http: httpx.Client) -> None:
    config = {"configName": "tight", "maxPerWindow": 1, "windowSize": "PT1S", "maxDelay": "PT0S"}
    http.post("/admin/rate-limit/config", json=config)
    events = [{"eventId": f"tight-{number}", "requestedTime": AT} for number in range(2)]
    booked, refused = http.post("/api/v1/slots/batch", json={"configName": "tight", "events": events}).json()["results"]
    assert booked["eventId"] == "tight-0"
    assert (refused["eventId"], refused["error"]["status"]) == ("tight-1", 503)
    assert refused["error"]["earliest"] == "2027-05-01T00:00:01.000Z"


def test_a_stream_answers_each_line_and_reports_bad_ones_with_their_number(http: httpx.Client) -> None:
    body = "\n".join(
        [
            json.dumps({"eventId": "line-1", "requestedTime": AT}),
            "not json",
            "",
            json.dumps({"eventId": "line-4"}),
            json.dumps({"eventId": "line-5", "requestedTime": AT, "configName": "nowhere"}),
            json.dumps({"eventId": "x" * 70_000, "requestedTime": AT}),
            json.dumps({"eventId": "line-7", "requestedTime": AT}),
        ]
    )
    answers = lines(http.post("/api/v1/slots/batch", content=body.encode(), headers=NDJSON))
    assert [answer.get("line") for answer in answers] == [None, 2, 4, 5, 6, None]
    assert [answers[0]["eventId"], answers[5]["eventId"]] == ["line-1", "line-7"]
    errors = [answer["error"] for answer in answers[1:5]]
    assert [error["status"] for error in errors if isinstance(error, dict)] == [400, 400, 404, 400]
    assert isinstance(errors[1], dict)
    assert errors[1]["field"] == "requestedTime"


def test_a_stream_of_junk_ends_early_and_the_connection_goes_on(http: httpx.Client) -> None:
    answers = lines(http.post("/api/v1/slots/batch", content=b"x\n" * 100_000, headers=NDJSON))
    assert [answer["line"] for answer in answers] == list(range(1, 1002))
    assert isinstance(last := answers[-1]["error"], dict)
    assert last["type"] == "urn:paceline:problem:too-many-bad-lines"
    good = json.dumps({"eventId": "after-junk", "requestedTime": AT}).encode()
    assert [line["eventId"] for line in lines(http.post("/api/v1/slots/batch", content=good, headers=NDJSON))] == [
        "after-junk"
    ]


def test_a_stream_for_an_unknown_config_is_404(http: httpx.Client) -> None:
    assert http.post("/api/v1/slots/batch?configName=nowhere", content=b"", headers=NDJSON).status_code == 404


def test_a_client_that_sends_all_before_it_reads_does_not_stall(http: httpx.Client) -> None:
    """60,000 lines in, 60,000 out, far more than any socket buffer holds; httpx reads nothing until all is sent."""
    count, at = 60_000, "2028-05-01T00:00:00Z"

    def body() -> Iterator[bytes]:
        for first in range(0, count, 1000):
            yield "".join(
                f'{{"eventId":"stream-{number}","requestedTime":"{at}"}}\n' for number in range(first, first + 1000)
            ).encode()

    answers = lines(http.post("/api/v1/slots/batch", content=body(), headers=NDJSON, timeout=120))
    assert [answer["eventId"] for answer in answers] == [f"stream-{number}" for number in range(count)]
    assert len({answer["windowStart"] for answer in answers}) == count // 100


def test_a_stream_is_answered_while_it_is_still_being_sent(http: httpx.Client) -> None:
    """Each line is sent only once the one before was answered: it takes a socket to do both at once."""
    import socket

    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port or 80), timeout=30) as connection:
        connection.sendall(
            b"POST /api/v1/slots/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        received = b""
        for number in range(3):
            line = json.dumps({"eventId": f"duplex-{number}", "requestedTime": AT}).encode() + b"\n"
            connection.sendall(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            while f"duplex-{number}".encode() not in received:
                piece = connection.recv(65536)
                assert piece, "closed before it answered"
                received += piece
        connection.sendall(b"0\r\n\r\n")
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 200")
