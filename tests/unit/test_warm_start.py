"""A program started in a copy of a warm process is as one started by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm_start

LOADED = (
    "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}"
    " & {'paceline', 'tests', 'sqlalchemy', 'prometheus_client'}))"
)
WORDS = (
    "import os, sys; print(sys.argv, sys.path[0], os.environ.get('GIVEN'), os.getcwd(), sys.stdin.read()); sys.exit(3)"
)

PARENT = """
import multiprocessing, os, signal, sys

def work(pipe, file):
    from prometheus_client.values import ValueClass
    try:
        inherited = os.fstat(file).st_size == os.stat(__file__).st_size
    except OSError:
        inherited = False
    term = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    pipe.send((__name__, ValueClass.__name__, term, inherited, multiprocessing.parent_process().pid == os.getppid()))
    sys.exit(3)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.getcwd()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with open(__file__) as file:
        worker = context.Process(target=work, args=(theirs, file.fileno()))
        worker.start()
        print(ours.recv())
        worker.join()
    print(worker.exitcode)
"""


def test_what_programs_need_is_loaded_and_nothing_of_the_tests() -> None:
    assert warm_start.run([sys.executable, "-c", LOADED]).stdout == "['paceline', 'prometheus_client', 'sqlalchemy']\n"


def test_metrics_read_the_environment_of_the_program(tmp_path: Path) -> None:
    """When they are imported, and that was long ago."""
    program = [sys.executable, "-c", "from prometheus_client.values import ValueClass; print(ValueClass.__name__)"]
    for variables, kind in (({}, "MutexValue\n"), ({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, "MmapedValue\n")):
        assert warm_start.run(program, env={**os.environ, **variables}).stdout == kind


def test_it_is_given_what_it_would_be_given(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WORDS)
    given = {**os.environ, "GIVEN": "é"}
    for way, first, place in (
        (["-c", WORDS], "-c", ""),
        (["-m", "program"], str(tmp_path / "program.py"), str(tmp_path)),
        ([str(tmp_path / "program.py")], str(tmp_path / "program.py"), str(tmp_path)),
    ):
        words = [sys.executable, *way, "a", "b c"]
        warm = warm_start.run(words, cwd=tmp_path, env=given, input="ü")
        assert (warm.returncode, warm.stderr) == (3, "")
        assert warm.stdout == f"{[first, 'a', 'b c']} {place} é {tmp_path} ü\n"
        plain = subprocess.run(words, cwd=tmp_path, env=given, input="ü", capture_output=True, text=True, check=False)
        assert plain.stdout == warm.stdout


def test_its_workers_begin_as_those_of_any_program(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    words = [sys.executable, str(tmp_path / "parent.py")]
    warm = warm_start.run(words, cwd=tmp_path)
    assert (warm.stderr, warm.stdout) == ("", "('__mp_main__', 'MmapedValue', True, False, True)\n3\n")
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False).stdout == warm.stdout


def test_how_it_ends_is_reported() -> None:
    assert warm_start.run([sys.executable, "-c", ""]).returncode == 0
    failed = warm_start.run([sys.executable, "-c", "1/0"])
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    said = "import sys, time; print('up', flush=True); time.sleep(60)"
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        with warm_start.popen([sys.executable, "-c", said], stdout=-1, stderr=-1, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            assert process.poll() is None
            process.send_signal(signum)
            process.communicate(timeout=60)
        assert process.returncode == -signum


def test_it_ends_as_python_does() -> None:
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for end in (
        "sys.exit()",
        "sys.exit(7)",
        "sys.exit('no such thing')",
        "sys.exit(-1)",
        "sys.exit([])",
        "raise KeyboardInterrupt",
        "atexit.register(print, 'at the end'); print('so far', end=' ')",
        "threading.Timer(0.05, print, ['a thread']).start(); sys.exit(2)",
        "os.close(1); print('to nobody')",
    ):
        program = [sys.executable, "-c", f"import atexit, os, sys, threading; {end}"]
        warm = warm_start.run(program)
        plain = subprocess.run(program, capture_output=True, text=True, check=False, env=usual)
        assert (warm.returncode, warm.stdout) == (plain.returncode, plain.stdout), end
        assert warm.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:], end


def test_what_does_not_end_in_time_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm_start.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.1)


def test_a_program_on_the_path_of_a_shell(tmp_path: Path) -> None:
    warm_start.command_on_path("numbers", "calendar", tmp_path)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", "numbers 2030 3 | grep -c March; numbers x; echo $?"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1\n2\n"


def test_an_environment_that_changes_python_is_obeyed() -> None:
    done = warm_start.run(
        [sys.executable, "-c", "import sys; print(sys.flags.utf8_mode)"], env={**os.environ, "PYTHONUTF8": "1"}
    )
    assert done.stdout == "1\n"


def test_workers_of_a_run_are_copies_of_the_process_that_imported_the_tests() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # not by a mark: those are evaluated in that process
        pytest.skip("this run has no workers")
    assert Path(sys.orig_argv[1]).name == "warm_workers.py"
