"""The test of a module is found by its path: `tests/unit` mirrors `src/paceline`, and `tests/unit/apps/sms` mirrors
`apps/sms/src/paceline_sms`.

`limits/chain.py` is tested by `limits/test_chain.py`, an aspect of it by `limits/test_chain_<aspect>.py`; a package by
such names in the folder above it. Tests of `scripts`, `benchmarks` and `deploy` are in folders of these names, tests
about the whole tree in `tests/project`.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/paceline"
APPS = {path.parts[-3]: path for path in sorted(ROOT.glob("apps/*/src/paceline_*"))}
UNIT = ROOT / "tests/unit"
TOP = {name: ROOT / name for name in ("scripts", "benchmarks", "deploy")}
TESTED_BY = {
    "*/stores/*": ["tests/contracts/test_*.py", "tests/contracts/*/test_*.py"],
    "*/_blocking*.py": ["tests/unit/scripts/test_generate_blocking.py"],
    "apps/sms/*": ["tests/integration/test_notifications_*.py", "tests/contracts/test_lost_messages.py"],
    "apps/sms/providers/*": ["tests/integration/test_sms_*.py"],
    "apps/payments/*": ["tests/contracts/payments/test_*.py", "tests/integration/test_payments_*.py"],
    "apps/payments/feeds/*": ["tests/acceptance/test_feeds_http.py"],
    "apps/payments/service/*": ["tests/acceptance/test_payments_*.py", "tests/acceptance/test_schema.py"],
    "apps/sms/service/*": ["tests/integration/test_notifications_*.py", "tests/acceptance/test_sms_command_line.py"],
    "core_command.py": ["tests/project/test_core_alone.py"],
    "dispatch/*": ["tests/contracts/queue/test_*.py", "tests/contracts/test_tasks.py"],
    "dispatch/engines/*": ["tests/contracts/test_workflow_engine_*.py", "tests/integration/test_temporal_*.py"],
    "downstream/call.py": ["tests/integration/test_integrations_clients.py"],
    "downstream/client_calls.py": ["tests/integration/test_integrations_clients.py"],
    "downstream/delivery.py": ["tests/integration/test_integrations_clients.py"],
    "downstream/httpx_transport.py": ["tests/integration/test_integrations_clients.py"],
    "downstream/shared_breaker.py": ["tests/contracts/test_downstream_states.py"],
    "integrations/*": ["tests/integration/test_integrations_*.py"],
    "kafka/topics.py": ["tests/contracts/test_message_log_kafka.py"],
    "limits/store_calls.py": ["tests/unit/limits/test_store_health.py", "tests/unit/limits/test_local_lease.py"],
    "redis/*": ["tests/integration/test_redis_*.py"],
    "server/access/*": ["tests/contracts/test_audit_chain.py", "tests/contracts/test_sessions.py"],
    "server/bound/*": ["tests/integration/test_service_names.py"],
    "server/cli/*": ["tests/acceptance/test_command_line.py", "tests/acceptance/test_*_command_line.py"],
    "server/console/*": ["tests/integration/test_console_*.py", "tests/acceptance/test_console*.py"],
    "server/envoy/*": ["tests/integration/test_envoy_service.py"],
    "server/grpc/*": ["tests/integration/test_envoy_service.py"],
    "server/http/*": ["tests/integration/test_service_*.py", "tests/acceptance/test_schema.py"],
    "server/metrics/*": ["tests/integration/test_metrics.py"],
    "server/rollups/*": ["tests/contracts/test_rollup_store.py"],
    "server/setting_sections.py": ["tests/unit/server/test_settings.py"],
    "server/shapes/*": ["tests/acceptance/test_schema.py"],
    "server/shutdown.py": ["tests/acceptance/test_shutdown.py"],
    "server/wiring/*": ["tests/integration/test_service_*.py"],
    "server/worker.py": ["tests/acceptance/test_workers.py"],
    "sql/*": ["tests/contracts/test_*_sql.py", "tests/integration/test_migrations.py"],
    "testing/*": ["tests/integration/test_servers_*.py"],
}
"""Modules that have no unit test at their path, and the suites that test them: those that mostly call a database, a
server or a framework, and those whose promises belong to a whole. The front of a feature is not among them."""


def modules(folder: Path) -> dict[str, Path]:
    """The modules and packages in a folder, by their names without leading and trailing underscores."""
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    packages = [path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))]
    return {path.stem.strip("_"): path for path in (*files, *packages)}


def source_of(folder: Path) -> Path:
    """What a folder of unit tests mirrors."""
    first, *others = folder.relative_to(UNIT).parts or ("",)
    if first == "apps":
        return APPS[others[0]].joinpath(*others[1:]) if others else ROOT / "apps"
    return TOP[first].joinpath(*others) if first in TOP else SOURCE / folder.relative_to(UNIT)


def module_of(test: Path) -> Path | None:
    """The module or package that a file of tests is named after."""
    folder = source_of(test.parent)
    if not folder.is_dir():  # a folder with the tests of one module
        return folder.with_suffix(".py") if folder.with_suffix(".py").is_file() else None
    name = test.stem.removeprefix("test_")
    named = {module: path for module, path in modules(folder).items() if f"{name}_".startswith(f"{module}_")}
    return named[max(named, key=len)] if named else None


TESTS = sorted(UNIT.rglob("test_*.py"))
TESTED = {path for test in TESTS if (path := module_of(test)) is not None}


@pytest.mark.parametrize("test", TESTS, ids=lambda test: str(test.relative_to(UNIT)))
def test_a_unit_test_is_named_after_a_module(test: Path) -> None:
    assert module_of(test) is not None, f"nothing in {source_of(test.parent)} has that name"


def test_other_files_of_unit_tests_are_beside_those_of_their_package() -> None:
    folders = {path.parent for path in UNIT.rglob("*.py") if not path.name.startswith("test_")}
    assert [folder for folder in sorted(folders) if not source_of(folder).is_dir()] == []


def behaves(module: Path) -> bool:
    """Whether a module does something: a function of it, not of a protocol, has a body."""
    tree = ast.parse(module.read_text("utf-8"))
    declared = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for part in ast.walk(node)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        not isinstance(step, ast.Expr | ast.Pass)
        for function in functions
        if function not in declared
        for step in function.body
    )


ELSEWHERE = [
    f"{folder}{path.relative_to(source).as_posix()}"
    for folder, source in {"": SOURCE, **{f"apps/{name}/": source for name, source in APPS.items()}}.items()
    for path in sorted(source.rglob("*.py"))
    if path.name != "__init__.py" and "migrations" not in path.parts and path not in TESTED and behaves(path)
]
"""The modules without a unit test of their own."""


@pytest.mark.parametrize("module", ELSEWHERE)
def test_a_module_without_a_unit_test_is_tested_by_a_suite(module: str) -> None:
    assert any(fnmatchcase(module, pattern) for pattern in TESTED_BY), f"write {unit_test_of(module)}"


def unit_test_of(module: str) -> str:
    path = Path(module)
    return str(Path("tests/unit") / path.parent / f"test_{path.stem.strip('_')}.py")


@pytest.mark.parametrize("pattern", TESTED_BY)
def test_the_suites_are_there_and_needed(pattern: str) -> None:
    assert any(fnmatchcase(module, pattern) for module in ELSEWHERE), "every module of it has a unit test: remove it"
    for suite in TESTED_BY[pattern]:
        assert any(ROOT.glob(suite)), f"there is no {suite}"
