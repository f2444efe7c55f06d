"""`python -m paceline_payments.downstream`: serves the simulator until a signal stops it."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys

from paceline.errors import InvalidInput, MissingExtra
from paceline.extras import needed

PROGRAM = "python -m paceline_payments.downstream"
try:
    with needed(PROGRAM, "server"):
        import uvicorn

        from paceline_payments.downstream.server import SimulatorApp
        from paceline_payments.downstream.simulator import Behaviour, Simulator
except MissingExtra as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9090, help="0 for any that is free")
    parser.add_argument("--tps", type=int, default=50, help="calls it takes in any sliding second")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--fail", type=float, default=0.0, help="share of calls answered 503, nothing done")
    parser.add_argument("--lose", type=float, default=0.0, help="share of calls done, and answered 500")
    parser.add_argument("--refuse", type=float, default=0.0, help="share of payments refused with 422")
    parser.add_argument("--seed", type=int, help="makes the faults the same every time")
    options = parser.parse_args()
    try:
        behaviour = Behaviour(options.tps, options.latency_ms, options.fail, options.lose, options.refuse)
    except InvalidInput as error:
        parser.error(str(error))
    listening = socket.create_server((options.host, options.port))
    host, port = listening.getsockname()[:2]
    app = SimulatorApp(Simulator(behaviour, seed=options.seed))
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, server_header=False, log_level="warning"))
    sys.stdout.write(f"the downstream is simulated on http://{host}:{port}, {options.tps} calls a second\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.run([listening])


if __name__ == "__main__":
    main()
