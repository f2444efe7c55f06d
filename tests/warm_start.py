"""Starts Python programs in copies of a process that has their modules loaded already.

The suite starts hundreds of `paceline` commands, services and workers. Nearly all of what a command takes is importing
SQLAlchemy, Alembic, Pydantic and their like, and our own modules; a copy (a fork) of a process that has done so begins
where the program does, and finds the statements of a service compiled. A copy ends without Python's clearing of its
memory, which would copy all of it first. That each command imports what it needs, in whatever order,
`tests/unit/test_cold_imports.py` shows. The tests' own caches apply there, too.

`popen` and `run` take what `subprocess.Popen` and `subprocess.run` take. A program whose environment changes how Python
or the metrics start (`PYTHON…`, the locale, `PROMETHEUS…`) is started in the ordinary way, and so is every program
where there is no `fork`.

The workers that such a copy starts with `multiprocessing` ("spawn": `paceline serve --workers 2`) are copies, too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = """
    alembic.command alembic.operations click confluent_kafka confluent_kafka.admin fastapi.middleware
    fastapi.openapi.utils
    fastapi.staticfiles httpx httpx2 multiprocessing.connection orjson psycopg psycopg.types.json pydantic.v1
    redis.asyncio schwifty sqlalchemy.dialects.postgresql
    sqlalchemy.dialects.sqlite sqlalchemy.ext.asyncio sqlite3 starlette.middleware.gzip structlog temporalio.client
    temporalio.contrib.pydantic temporalio.worker uvicorn uvicorn.lifespan.on uvicorn.loops.auto
    uvicorn.protocols.http.auto uvicorn.protocols.websockets.auto
"""
# What programs import. One too few costs time and nothing else. None may be here that reads the environment when it is
# imported, except for the variables of `_changes_python`.
LEFT_OUT = (
    "paceline.integrations",
    "paceline.server.envoy",
    "paceline.server.grpc",
    "paceline.sql.migrations",
    "paceline.testing",
)
"""Our own modules that are not loaded beforehand: they import one that must not be, or that few programs need."""

ADDRESS = "TESTS_WARM_START"
"""The environment variable that names the warm process of a whole run, if there is one."""
LONGEST = 200_000
"""Bytes of a message, the environment in it; longer ones are not passed at once."""
LOADING_SECONDS = 300.0
"""How long the warm process may take until it listens, on a busy machine."""


def popen(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` of a Python program: `[sys.executable, "-m", …]`, `"-c"` or a file."""
    environment = options.get("env")
    if not hasattr(os, "fork") or _changes_python(os.environ if environment is None else environment):
        return subprocess.Popen(arguments, **options)
    return WarmProcess(arguments, **options)


def run(
    arguments: Sequence[str], *, input: str | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a Python program, with `capture_output` and `text`, and without `check`."""
    stdin = {} if input is None else {"stdin": subprocess.PIPE}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(arguments, text=True, **stdin, **pipes, **options) as process:
        try:
            out, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def command_on_path(name: str, module: str, directory: Path) -> None:
    """Puts a program `name` into `directory` that does what `python -m module` does; for shells."""
    write_command(directory / name, _address(), ["-m", module])


def python_on_path(directory: Path) -> None:
    """Puts a program `python` into `directory`, for programs that are files or modules."""
    write_command(directory / "python", _address(), [])


def write_command(script: Path, address: str, arguments: list[str]) -> None:
    """Writes a program that runs Python with these arguments and its own, in a copy of the warm process."""
    script.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import warm_start\n"
        f"warm_start.pass_on({address!r}, [*{arguments!r}, *sys.argv[1:]])\n"
    )
    script.chmod(0o755)


def pass_on(address: str, arguments: list[str]) -> None:
    """Runs the program with this process's files, folder and environment, and ends as it does."""
    connection, pid = _request(address, arguments, str(Path.cwd()), os.environ, [0, 1, 2])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = os.waitstatus_to_exitcode(int(connection.recv(32)))
    os._exit(status if status >= 0 else 128 - status)


def _changes_python(environment: Mapping[str, str]) -> bool:
    """Whether Python would start otherwise with it than with ours."""

    def decisive(variables: Mapping[str, str]) -> dict[str, str]:
        begins = ("PYTHON", "LC_", "LANG", "PROMETHEUS", "prometheus")
        return {n: value for n, value in variables.items() if n.startswith(begins) and n != "PYTHONPATH"}

    return decisive(environment) != decisive(os.environ)


def _request(
    address: str, arguments: list[str], directory: str, environment: Mapping[str, str], files: list[int]
) -> tuple[socket.socket, int]:
    """The connection on which the program's wait status will come, and its process id."""
    request = json.dumps([arguments, directory, dict(environment)]).encode("utf-8", "surrogateescape")
    assert len(request) < LONGEST, f"{len(request)} bytes of arguments and environment"
    connection = _connect(address)
    socket.send_fds(connection, [request], files)
    return connection, int(connection.recv(32))


def _connect(address: str) -> socket.socket:
    """A connection to the warm process, which may still be loading."""
    deadline = time.monotonic() + LOADING_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return connection


class WarmProcess(subprocess.Popen[Any]):
    """A program in a copy of the warm process. It is no child of ours: its exit status comes over a connection."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        """`subprocess.Popen` calls this to fork and execute."""
        (_executable, _preexec, _close, _pass, directory, environment, _startup, _flags, shell, *pipes) = others
        reads, _, _, writes, _, errors = ends = pipes[:6]
        assert args[0] == sys.executable, "only for Python"
        assert not shell
        files = [number if given == -1 else given for number, given in enumerate((reads, writes, errors))]
        try:
            self._connection, self.pid = _request(
                _address(),
                [os.fspath(word) for word in args[1:]],
                os.fspath(directory or Path.cwd()),
                os.environ if environment is None else environment,
                files,
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = int(self._connection.recv(32))
        self._connection.close()
        return self.pid, status


class Warm:
    """A warm process, which ends when this process does: this program, or another that calls `serve`."""

    def __init__(self, program: str = __file__, *arguments: str, cwd: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="paceline-warm-"))
        self.address = str(self.directory / "socket")
        with (self.directory / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, program, self.address, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=cwd or self.directory,
            )
        atexit.register(self._process.communicate)


_starting = threading.Lock()
_started: list[Warm] = []


def start_for_all_workers() -> None:
    """Starts the warm process that this process and those it starts share, unless there is one."""
    os.environ[ADDRESS] = _address()


def _address() -> str:
    """Where the warm process listens; it is started if there is none."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    with _starting:
        if not _started:
            _started.append(Warm())
        return _started[0].address


# The warm process.


def own_modules() -> list[str]:
    """Every module of paceline that may be loaded beforehand."""
    spec = importlib.util.find_spec("paceline")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    files = (file.relative_to(root.parent).with_suffix("") for file in sorted(root.rglob("*.py")))
    names = (".".join(file.parts).removesuffix(".__init__") for file in files)
    return [name for name in names if not name.startswith(LEFT_OUT) and not name.endswith("__main__")]


def load(names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # not installed: the program that needs it reports that


def quicken() -> None:
    """What the tests' own process does to be quick; the modules lie beside this file."""
    import asyncio  # not above: each command of a shell imports this file, to pass itself on

    migrated = importlib.import_module("migrated")
    migrated.quicken_sqlite()
    migrated.image_with_log()
    importlib.import_module("parsing").take_turns()
    for name in ("compiled_statements", "trusted_certificates"):
        importlib.import_module(name).share()
    importlib.import_module("httpx2").create_ssl_context()
    name_temporal_build()
    asyncio.run(_start_once())


def name_temporal_build() -> None:
    """By default a worker of Temporal does so when it starts: by a hash over the code of all loaded modules."""
    with suppress(ImportError):
        importlib.import_module("temporalio.worker._worker").load_default_build_id()


async def _start_once() -> None:
    """Starts a service in memory and stops it, so that the copies find its statements compiled."""
    settings = importlib.import_module("paceline.server.settings")
    app = importlib.import_module("paceline.server.http.app").create_app(settings.Settings(database_url="memory://"))
    async with app.router.lifespan_context(app):
        pass


def serve(address: str) -> tuple[list[str], str, dict[str, str]]:
    """Copies this process for each that connects, and reports how the copies end. Returns in the copies, with what to
    run; never here."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    copies = Copies()
    while True:
        file = copies.next_event(0, listener.fileno())
        if file == 0:  # its end: the tests are over
            copies.kill()
            shutil.rmtree(Path(address).parent, ignore_errors=True)
            os._exit(0)
        connection, _ = listener.accept()
        files: list[int] = []
        with suppress(OSError):
            request, files, _, _ = socket.recv_fds(connection, LONGEST, 3)
        if not files:  # it is gone again
            connection.close()
            continue
        pid = os.fork()
        if pid == 0:
            listener.close()
            connection.close()
            copies.forget()
            for number, given in enumerate(files):
                os.dup2(given, number)
                os.close(given)
            return tuple(json.loads(request.decode("utf-8", "surrogateescape")))
        for given in files:
            os.close(given)
        copies.watch(pid, connection)


class Copies:
    """Programs that run in copies of this process, each with the connection of the process that started it."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """By the file that reports its end."""
        self._starters: dict[int, int] = {}
        """The process id of the program, by the file of its connection."""

    def next_event(self, *others: int) -> int:
        """Waits until one of the other files can be read; meanwhile it reports the ends of programs."""
        while True:
            poll = select.poll()
            for file in (*others, *self._running, *self._starters):
                poll.register(file, select.POLLIN)
            for file, _ in poll.poll():
                if file in self._running:
                    self._report(file)
                elif file in self._starters:  # the process that started it is gone: nothing else would end it
                    os.kill(self._starters.pop(file), signal.SIGKILL)
                elif file in others:
                    return file

    def watch(self, pid: int, connection: socket.socket) -> None:
        self._running[os.pidfd_open(pid)] = (pid, connection)
        self._starters[connection.fileno()] = pid
        with suppress(OSError):
            connection.send(str(pid).encode())

    def _report(self, file: int) -> None:
        pid, connection = self._running.pop(file)
        self._starters.pop(connection.fileno(), None)
        _, status = os.waitpid(pid, 0)
        os.close(file)
        with suppress(OSError), connection:
            connection.send(str(status).encode())

    def kill(self) -> None:
        for pid, _ in self._running.values():
            os.kill(pid, signal.SIGKILL)

    def forget(self) -> None:
        """In a copy: closes what belongs to the other programs."""
        for file, (_, connection) in self._running.items():
            os.close(file)
            connection.close()


def become(arguments: list[str], directory: str, environment: dict[str, str]) -> None:
    """Makes this copy what Python would have been if it had been started so, and runs the program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    copy_workers()
    errors = sys.__stdin__.errors if sys.__stdin__ else None
    sys.stdin = sys.__stdin__ = open(0, errors=errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", errors=errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    where = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    while arguments[0] in ("-u", "-B"):  # how output is buffered and modules are kept has been decided
        arguments = arguments[1:]
    match arguments:
        case ["-m", module, *rest]:
            sys.argv, sys.path[:1] = [module, *rest], [directory, *where]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv, sys.path[:1] = ["-c", *rest], ["", *where]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), main.__dict__)
        case [file, *rest]:
            sys.argv, sys.path[:1] = [file, *rest], [str(Path(file).parent), *where]
            runpy.run_path(file, run_name="__main__")


def copy_workers() -> None:
    """Lets `multiprocessing` start its processes as copies of this one, where it would start Python again."""
    from multiprocessing import util

    execute = util.spawnv_passfds

    def spawn(path: bytes, words: Sequence[Any], files: Sequence[int]) -> int:
        if words[-1] != "--multiprocessing-fork":
            return execute(path, words, files)
        pid = os.fork()
        if pid == 0:
            try:
                _work(words[list(words).index("-c") + 1], files)
            except SystemExit as ended:
                end(ended.code)
            except BaseException:
                traceback.print_exc()
            finally:  # whatever happens, the frames of the process that was copied must not go on
                os._exit(1)
        return pid

    util.spawnv_passfds = spawn  # type: ignore[assignment]


def _work(code: str, files: Sequence[int]) -> None:
    """In a copy: what a new Python would have, and then the worker."""
    gc.collect()  # a file that is closed later would be another one
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for file in {int(opened.name) for opened in Path("/dev/fd").iterdir()}.difference((0, 1, 2), files):
        with suppress(OSError):  # the folder's own
            os.close(file)
    values: Any = sys.modules.get("prometheus_client.values")
    if values is not None:
        values.ValueClass = values.get_value_class()  # as its import does, by the environment
    sys.argv = ["-c", "--multiprocessing-fork"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main.__dict__)


def end(code: object) -> None:
    """Ends as Python does after `SystemExit(code)`, but for the clearing of its memory."""
    if code is None:
        code = 0
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # not read, or closed: let Python report it in its own way
    os._exit(code & 0xFF)


if __name__ == "__main__":
    load([*PACKAGES.split(), *own_modules()])
    quicken()
    program = serve(sys.argv[1])
    # At the end, not inside a function: whatever else the program raises ends Python in the usual way.
    try:
        become(*program)
    except SystemExit as ended:
        end(ended.code)
        raise
    end(None)
