"""Writes the blocking form of each asynchronous module: `python scripts/generate_blocking.py [--check]`.

The asynchronous form is written by hand. Words are replaced (`async def`, `await`, `AsyncLimiter` …), then ruff removes
unused imports and formats. Where the two really differ, the source says so:

    value = 1  # async only
    # async only: begin
    # async only: end         the lines between
    # blocking: value = 2     a line of the blocking form alone

A class whose calls go to an event loop in the background has no twin but a facade: a method for each of its public
asynchronous methods, with the same signature and docstring.

With `--check` nothing is written, and a file that is out of date is an error.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/paceline")
WORDS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\b([Aa])n (`?)Async(?=[A-Z])", r"\1 \2"),
    (r"\bAsync(?=[A-Z])", ""),
)
WRAPPERS = ("Awaitable[",)
CLOSING = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class Twin:
    """A source, its blocking form, and what is special about it."""

    source: str
    target: str
    wrappers: Sequence[str] = ()
    """Calls that only an event loop needs, up to the argument that is left of them."""
    replacements: Sequence[tuple[str, str]] = ()
    """Text by text. Each must be in the source."""


TWINS = (
    Twin(
        "limits/limiter.py",
        "limits/_blocking.py",
        replacements=(
            ("For event loops.\n\n`Limiter`, the same for threads, is generated from this file", "For threads"),
            (": `scripts/generate_blocking.py`", ""),
            (" One limiter serves one event loop.", ""),
            ("loaded at the first call", "loaded at once"),
            ("\n    A registry that isn't awaited is loaded in a thread.", ""),
            ("loaded in a thread have", "loaded have"),
            ("import asyncio\n", "from time import sleep\n"),
            ("asyncio.sleep", "sleep"),
            ("paceline.limits.handles", "paceline.limits._blocking_handles"),
            ("paceline.limits.store_calls", "paceline.limits._blocking_store_calls"),
            ("AsyncPlanRegistry, ", ""),
            (" | AsyncPlanRegistry", ""),
        ),
    ),
    Twin(
        "limits/store_calls.py",
        "limits/_blocking_store_calls.py",
        wrappers=(
            "self._with_deadline(self._store, ",
            "self._with_deadline(self._fallback, ",
            "self._shielded(lease.lock, ",
            "self._shielded(None, ",
        ),
        replacements=(
            (
                "For event loops.\n\nThe form for threads is generated from this file: `scripts/generate_blocking.py`",
                "For threads",
            ),
            ("async_limit_store", "limit_store"),
            ("async_service_plans", "service_plans"),
        ),
    ),
    Twin(
        "limits/handles.py",
        "limits/_blocking_handles.py",
        wrappers=("self._limiter._with_deadline(store, ", "self._limiter._shielded(None, "),
        replacements=(
            (".\n\nThe form for threads is generated from this file: `scripts/generate_blocking.py`.\n", "."),
        ),
    ),
    Twin(
        "redis/async_client.py",
        "redis/blocking_client.py",
        wrappers=("self._within_timeout(",),
        replacements=(
            ("for event loops", "for threads"),
            ("`RedisClient`, the same for threads, is generated from this file: `scripts/generate_blocking.py`.\n", ""),
            ("import asyncio\n", "import os\n"),
            ("redis.async_connection", "redis.blocking_connection"),
            ("asyncio.sleep", "time.sleep"),
            ("; calls in flight on an event loop fail", " that are idle; one in use is closed after its call"),
        ),
    ),
    Twin(
        "limits/stores/redis.py",
        "limits/stores/redis_blocking.py",
        replacements=(
            (".\n\nThe form for threads is generated from this file: `scripts/generate_blocking.py`.\n", "."),
            (", for event loops.", ", for threads."),
            ("\n\n    Concurrent calls share a connection and one packet per turn of the loop.", ""),
            ("\n    Equal calls are coalesced into one run of the script.\n    ", ""),
            ("redis.async_client", "redis.blocking_client"),
        ),
    ),
)


@dataclass(frozen=True)
class Facade:
    """Classes of a module, and the blocking form of their public methods."""

    source: str
    target: str
    twins: Sequence[Facing]
    bases: Sequence[str] = ()
    """Files of the classes they inherit methods from."""


@dataclass(frozen=True)
class Facing:
    """A class, and the `parent` that runs the calls of its blocking form."""

    class_name: str
    parent: str
    """Module and class. It has `_run(call)`, and `_run_within(*within, call)` for methods that take a connection; and
    what of the class is not generated, such as `close`."""
    docstring: str
    within: Sequence[str] = ("connection",)
    left_out: Sequence[str] = ("open", "close")
    """Methods that are not generated: written by hand in the parent, or for an event loop only."""
    on_loop: Sequence[str] = ()
    """Methods that don't wait, and must run on the event loop all the same: by the parent's `_run_at_once(call)`."""
    makes: bool = False
    """Whether the blocking form takes the options of the class, and gives its parent a function that makes one."""


FACADES = (
    Facade(
        "slots/scheduler.py",
        "slots/_blocking.py",
        (
            Facing(
                "SlotScheduler",
                "paceline.slots.background_scheduler.BackgroundScheduler",
                """A `SlotScheduler` whose calls block until they are done.

    with BlockingSlotScheduler("sqlite:///slots.db") as slots:
        slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        slot = slots.assign("order-123", "default", "2027-03-01T16:00:00Z")

Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.""",
                left_out=("open", "close", "assign_stream"),
            ),
        ),
        bases=("slots/maintenance.py", "slots/inspection.py"),
    ),
    Facade(
        "dispatch/queue.py",
        "dispatch/_blocking.py",
        (
            Facing(
                "DispatchQueue",
                "paceline.dispatch.background_queue.BackgroundQueue",
                """A `DispatchQueue` for scripts and WSGI applications: each call returns when it is done.

    with BlockingDispatchQueue("sqlite:///work.db") as queue:
        queue.configure("INVOICE")
        queue.enqueue("INVOICE", "inv-1", context={"total": "12.00"})

Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.""",
                within=("connection", "item_type"),
                left_out=("open", "close", "enqueue_request", "enqueue_requests", "enqueue_group"),
            ),
        ),
        bases=("dispatch/queue_views.py",),
    ),
    Facade(
        "dispatch/tasks/tasks.py",
        "dispatch/tasks/_blocking.py",
        (
            Facing(
                "Tasks",
                "paceline.dispatch.tasks.background_tasks.BackgroundTasks",
                """The calls of a `Tasks` without `await`: `tasks.blocking`.

    tasks.blocking.define()
    send_invoice.blocking.enqueue("inv-1")

Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.""",
                left_out=(
                    "declare",
                    "close",
                    "queue",
                    "run",
                    "running",
                    "in_memory",
                    "lend",
                    "enqueue_item",
                    "enqueue_calls",
                    "queue_next",
                ),
            ),
        ),
    ),
    Facade(
        "dispatch/tasks/task.py",
        "dispatch/tasks/_blocking_task.py",
        (
            Facing(
                "Task",
                "paceline.dispatch.tasks.background_tasks.BackgroundTask",
                """The calls of a `Task` without `await`: `task.blocking.enqueue("inv-1")`.""",
            ),
            Facing(
                "Call",
                "paceline.dispatch.tasks.background_tasks.BackgroundCall",
                """The calls of a `Call` without `await`: `task.options(key="inv-1").blocking.enqueue("inv-1")`.""",
            ),
        ),
    ),
    Facade(
        "downstream/downstream.py",
        "downstream/_blocking.py",
        (
            Facing(
                "Downstream",
                "paceline.downstream.background_downstream.BackgroundDownstream",
                """A `Downstream` that any number of threads may call. A forked process opens its own connections.

    bank = BlockingDownstream("bank", "sqlite:///work.db", rate="50/second")
    with bank.call():
        requests.post(url, json=order)""",
                makes=True,
            ),
        ),
    ),
    Facade(
        "downstream/call.py",
        "downstream/_blocking_call.py",
        (
            Facing(
                "Call",
                "paceline.downstream.background_downstream.BackgroundCall",
                """A call to a downstream. Made by `BlockingDownstream.call`; otherwise as `Call`.""",
                on_loop=("settle", "refused", "answered", "left"),
            ),
        ),
    ),
)


def facade(text: str, facade: Facade, *bases: str) -> str:
    """The module with the blocking form of classes; `bases` are the texts of `facade.bases`.

    Raises:
        ValueError: a class isn't in the source.
    """
    modules = [ast.parse(source) for source in (text, *bases)]
    classes = {node.name: node for node in modules[0].body if isinstance(node, ast.ClassDef)}
    inherited = [node for module in modules[1:] for node in module.body if isinstance(node, ast.ClassDef)]
    source = "paceline." + facade.source.removesuffix(".py").replace("/", ".")
    names = [f"Blocking{twin.class_name}" for twin in facade.twins]
    lines = [
        f"# Generated from {facade.source} by scripts/generate_blocking.py. Do not edit.",
        f'"""{" and ".join(f"`{name}`" for name in names)}: the same calls for threads, without an event loop."""',
        *(
            ast.unparse(node)
            for module in modules
            for node in module.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
        *(f"from {home} import {parent}" for home, _, parent in (one.parent.rpartition(".") for one in facade.twins)),
        f"from {source} import {', '.join([*classes, *_aliases(modules[0])])}",
        "from paceline.background import listed",
    ]
    lines += [ast.unparse(node) for node in modules[0].body if _is_type_variable(node)]
    for name, twin in zip(names, facade.twins, strict=True):
        if twin.class_name not in classes:
            raise ValueError(f"{facade.source}: there is no class {twin.class_name}")
        original = classes[twin.class_name]
        used = [base.slice for base in original.bases if isinstance(base, ast.Subscript)]
        generics = f"[{ast.unparse(used[0]).strip('()')}]" if used else ""
        parent = twin.parent.rpartition(".")[2] + generics
        lines += [f"class {name}({parent}):", _indented(f'"""{twin.docstring}\n"""')]
        known = set(twin.left_out)
        for method in (method for each in (original, *inherited) for method in each.body):
            if isinstance(method, ast.FunctionDef) and method.name == "__init__" and twin.makes:
                lines += _facade_init(method, twin)
            elif isinstance(method, ast.FunctionDef) and method.name in twin.on_loop:
                lines += _facade_method(method, twin)
            elif (
                isinstance(method, ast.AsyncFunctionDef)
                and not method.name.startswith("_")
                and method.name not in known
            ):
                lines += _facade_method(method, twin)
                known.add(method.name)
    return _formatted("\n".join(lines) + "\n", str(PACKAGE / facade.target))


def _aliases(module: ast.Module) -> Iterator[str]:
    """The names of types that a module defines, such as `EventTime = tuple[str, str]`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_type_variable(node: ast.stmt) -> bool:
    made = node.value if isinstance(node, ast.Assign) else None
    return isinstance(made, ast.Call) and ast.unparse(made.func) in ("ParamSpec", "TypeVar")


def _facade_init(method: ast.FunctionDef, twin: Facing) -> Iterator[str]:
    given = ", ".join(_given(method.args))
    yield f"    def __init__({ast.unparse(method.args)}) -> None:"
    yield f"        super().__init__(lambda: {twin.class_name}({given}))"


def _given(arguments: ast.arguments) -> list[str]:
    """The arguments of a method as they are passed on."""
    given = [argument.arg for argument in arguments.args[1:]]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return given


def _facade_method(method: ast.AsyncFunctionDef | ast.FunctionDef, twin: Facing) -> Iterator[str]:
    arguments = method.args
    returns = ast.unparse(method.returns) if method.returns is not None else "None"
    yield f"    def {method.name}({ast.unparse(arguments)}) -> {returns}:"
    yield _indented(f'"""{ast.get_docstring(method)}\n"""'.replace("await ", ""), 2)
    # Read in the caller's thread, where the database connection behind it may be used.
    yield from (f"        {name} = listed({name})" for name in _iterables(arguments))
    takes_connection = "connection" in {argument.arg for argument in arguments.kwonlyargs}
    run = f"_run_within({', '.join(twin.within)}, " if takes_connection else "_run("
    run = "_run_at_once(" if method.name in twin.on_loop else run
    it = re.findall("[A-Z][a-z]+", twin.class_name)[-1].lower()
    yield f"        return self.{run}lambda {it}: {it}.{method.name}({', '.join(_given(arguments))}))"


def _iterables(arguments: ast.arguments) -> Iterator[str]:
    for argument in [*arguments.args, *arguments.kwonlyargs]:
        if argument.annotation is not None and ast.unparse(argument.annotation).startswith("Iterable["):
            yield argument.arg


def _indented(text: str, depth: int = 1) -> str:
    return "\n".join(("    " * depth + line).rstrip() for line in text.splitlines())


def blocking(text: str, twin: Twin) -> str:
    """The blocking form of a source.

    Raises:
        ValueError: a replacement or wrapper isn't in the source any more, or a mark has no end.
    """
    for old, new in twin.replacements:
        if old not in text:
            raise ValueError(f"{twin.source}: {old!r} is not there to be replaced")
        text = text.replace(old, new)
    for wrapper in twin.wrappers:
        if wrapper not in text:
            raise ValueError(f"{twin.source}: {wrapper!r} is not there to be unwrapped")
    for wrapper in (*WRAPPERS, *twin.wrappers):
        text = _unwrapped(text, wrapper)
    text = "\n".join(_blocking_lines(text.splitlines(), twin.source)) + "\n"
    head = f"# Generated from {twin.source} by scripts/generate_blocking.py. Do not edit.\n"
    return _formatted(head + text, str(PACKAGE / twin.target))


def _blocking_lines(lines: Sequence[str], source: str) -> Iterator[str]:
    async_only = False
    for line in lines:
        mark = line.strip()
        if mark == "# async only: begin":
            async_only = True
        elif mark == "# async only: end":
            async_only = False
        elif async_only or line.endswith("  # async only"):
            continue
        elif mark.startswith("# blocking: "):
            yield line.replace("# blocking: ", "", 1)
        else:
            yield _blocking_words(line)
    if async_only:
        raise ValueError(f"{source}: a mark `# async only: begin` has no end")


def _blocking_words(line: str) -> str:
    for pattern, replacement in WORDS:
        line = re.sub(pattern, replacement, line)
    return line


def _unwrapped(text: str, start: str) -> str:
    """`text` with the last argument of each call, or subscript, that begins with `start` in place of it."""
    bracket = "(" if "(" in start else "["
    while (begin := text.find(start)) >= 0:
        depth, at = 1, begin + len(start)
        while depth:
            depth += {bracket: 1, CLOSING[bracket]: -1}.get(text[at], 0)
            at += 1
        text = text[:begin] + text[begin + len(start) : at - 1] + text[at:]
    return text


def _formatted(text: str, path: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for arguments in (["check", "--fix", "--quiet", "--select=F401,I"], ["format", "--quiet"]):
        command = [ruff, *arguments, "--stdin-filename", path, "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: Sequence[str]) -> int:
    check = "--check" in arguments
    outdated = []
    for form in (*TWINS, *FACADES):
        target = ROOT / PACKAGE / form.target
        source = (ROOT / PACKAGE / form.source).read_text(encoding="utf-8")
        if isinstance(form, Twin):
            text = blocking(source, form)
        else:
            bases = [(ROOT / PACKAGE / base).read_text(encoding="utf-8") for base in form.bases]
            text = facade(source, form, *bases)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            outdated.append(str(PACKAGE / form.target))
            if not check:
                target.write_text(text, encoding="utf-8")
    for path in outdated:
        sys.stderr.write(f"{path} {'is out of date: run `make blocking`' if check else 'is written'}\n")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
