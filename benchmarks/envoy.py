"""Requests through a real Envoy: without the rate limit filter, with an empty Python servicer, with paceline."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.acceptance.envoy_proxy import EnvoyProxy, free_port

from benchmarks.http_load import server_process
from benchmarks.measure import Race, Row, Table, Target, cpu_seconds, per_second, race, summary
from paceline.testing.load import KeepAlive

CONNECTIONS = 32
POOLED = 10
"""So many short rounds are one figure."""
RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 4000000000}
"""
EMPTY = """
import asyncio, sys
import grpc, uvloop
from paceline.server.envoy.messages import OK, RateLimitRequest, RateLimitResponse

async def answer(request, context):
    return RateLimitResponse(overall_code=OK)

async def main():
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    forms = RateLimitRequest.FromString, RateLimitResponse.SerializeToString
    method = grpc.unary_unary_rpc_method_handler(answer, *forms)
    service = "envoy.service.ratelimit.v3.RateLimitService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"ShouldRateLimit": method})])
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    print(f"http://127.0.0.1:{sys.argv[1]}", flush=True)
    await server.wait_for_termination()

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
asyncio.run(main())
"""
EMPTY_SERVICER, PACELINE, BARE = "empty servicer", "paceline", "no filter"


class BenchmarkProxy(EnvoyProxy):
    """An Envoy whose upstream is a listener of its own: nothing but Envoy and the service takes time."""

    def __init__(self, directory: Path, grpc_port: int, *, limited: bool = True) -> None:
        directory.mkdir()
        super().__init__(directory, grpc_port, filter_options={"failure_mode_deny": True})
        resources = self.configuration["static_resources"]
        listener, upstream = resources["listeners"][0], free_port()
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        answer = {"status": 200, "body": {"inline_string": "hello"}}
        host = {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": answer}]}
        inner = manager | {"route_config": {"virtual_hosts": [host]}, "http_filters": manager["http_filters"][1:]}
        filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": inner}]
        address = {"socket_address": {"address": "127.0.0.1", "port_value": upstream}}
        resources["listeners"].append({"address": address, "filter_chains": [{"filters": filters}]})
        endpoint = resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"] = address
        action = {"request_headers": {"header_name": ":path", "descriptor_key": "user"}}
        manager["route_config"]["virtual_hosts"][0]["rate_limits"] = [{"actions": [action]}]
        if not limited:
            manager["http_filters"] = manager["http_filters"][1:]


def tables(quick: bool) -> list[Table]:
    table = Table("Envoy: POST through the proxy, 32 connections, one core for Envoy's work")
    starts, repeats, requests = (1, POOLED, 200) if quick else (2, 5 * POOLED, 300)
    milliseconds: dict[str, list[float]] = {}
    microseconds: dict[str, list[float]] = {}
    races = [_race(repeats, requests, milliseconds, microseconds) for _ in range(starts)]
    result = Race.joined(races).pooled(POOLED)
    ours = per_second(result.spread(PACELINE).median)
    work = "Envoy with the filter, limits in memory"
    table.add(Row(work, ours, "an empty Python servicer", result.ratio(PACELINE, EMPTY_SERVICER), Target(least=0.8)))
    table.add(Row(work, ours, "Envoy without the filter", result.ratio(PACELINE, BARE)))
    table.note(summary("Envoy", result))
    cpu = [f"{name} {statistics.median(samples):.0f} µs" for name, samples in microseconds.items()]
    table.note(f"CPU time of the servicer per request: {', '.join(cpu)}")
    shown = [f"{name} {statistics.quantiles(samples, n=100)[98]:.1f} ms" for name, samples in milliseconds.items()]
    table.note(f"p99 at {CONNECTIONS} connections: {', '.join(shown)}")
    table.close()
    return [table]


def _race(
    repeats: int, requests: int, milliseconds: dict[str, list[float]], microseconds: dict[str, list[float]]
) -> Race:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "limits.yaml").write_text(RULES)
        empty_port, our_port = free_port(), free_port()
        _, empty_pid = stack.enter_context(server_process("-c", EMPTY, str(empty_port)))
        settings = {
            "PACELINE_DATABASE_URL": "memory://",
            "PACELINE_LOG_LEVEL": "error",
            "PACELINE_ENVOY_CONFIG": str(directory / "limits.yaml"),
        }
        ours = "-m", "paceline", "serve", "--port", "0", "--grpc-port", str(our_port)
        _, our_pid = stack.enter_context(server_process(*ours, **settings))
        proxies = {
            BARE: BenchmarkProxy(directory / "bare", our_port, limited=False),
            EMPTY_SERVICER: BenchmarkProxy(directory / "empty", empty_port),
            PACELINE: BenchmarkProxy(directory / "paceline", our_port),
        }
        for proxy in proxies.values():
            stack.enter_context(proxy)
        loads = {
            name: _load(proxy.port, requests, milliseconds.setdefault(name, [])) for name, proxy in proxies.items()
        }
        for name, pid in ((EMPTY_SERVICER, empty_pid), (PACELINE, our_pid)):
            loads[name] = _with_cpu(loads[name], pid, requests, microseconds.setdefault(name, []))
        return race(loads, repeats=repeats)


def _with_cpu(load: Callable[[], float], pid: int, requests: int, microseconds: list[float]) -> Callable[[], float]:
    """A load that also adds the CPU time which a process spent on each request."""

    def measured() -> float:
        spent = cpu_seconds(pid)
        figure = load()
        microseconds.append((cpu_seconds(pid) - spent) / requests * 1e6)
        return figure

    return measured


def _load(port: int, requests: int, milliseconds: list[float]) -> Callable[[], float]:
    """Sends `requests` over some connections; requests a second."""

    async def send_all() -> None:
        left = iter(range(requests))

        async def caller(number: int) -> None:
            async with KeepAlive(port) as connection:
                for _ in left:
                    started = time.perf_counter()
                    status, body = await connection.post(f"/user-{number}", b"{}")
                    milliseconds.append((time.perf_counter() - started) * 1000)
                    assert status == 200, body

        await asyncio.gather(*(caller(number) for number in range(CONNECTIONS)))

    def timed() -> float:
        started = time.perf_counter()
        asyncio.run(send_all())
        return requests / (time.perf_counter() - started)

    return timed
