"""The structure rules as functions over source text: each returns its violations, so that a test can plant one.

``sources`` maps a path below ``src/paceline`` (``engine/llm.py``) to the text of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "paceline"
SRC = Path(__file__).resolve().parents[2] / "src" / PACKAGE

_LOW = ("core", "gate", "fill", "grammar", "kernels", "sampling", "cache", "models", "draft")
#: Room -> rooms it may import beside itself.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "gate": frozenset({"core"}),
    "fill": frozenset({"core"}),
    "grammar": frozenset({"core"}),
    "kernels": frozenset({"core"}),
    "sampling": frozenset({"core", "kernels"}),
    "cache": frozenset({"core", "kernels"}),
    "models": frozenset({"core", "cache", "kernels"}),
    "draft": frozenset({"core", "models", "cache", "kernels", "sampling"}),
    "engine": frozenset(_LOW),
    "server": frozenset({"core", "engine"}),
    "testing": frozenset({*_LOW, "engine", "server", "bench"}),
    "bench": frozenset({*_LOW, "engine", "server", "testing"}),
    "cli": frozenset({"core", "server", "bench", "engine", "draft"}),
}
#: Room -> room -> the only modules of it that may be imported.
ONLY_MODULES = {("cli", "draft"): frozenset({"draft.registry"})}
#: Rooms that run without torch: they may name it for types and inside functions only.
PURE_ROOMS = frozenset({"core", "gate", "fill", "grammar", "cli"})
ENVIRONMENT_MODULE = "core/env.py"

#: Where a drafter's name may stand outside ``draft/``: as the name of something else.
KIND_EXCEPTIONS = {
    ("core/config.py", "draft_model"): "the alias --draft-model of the setting spec_model",
    ("cli/conversation.py", "assistant"): "the role of a chat message",
    ("server/schemas.py", "assistant"): "the role of a chat message",
    ("server/fields.py", "suffix"): "a field of OpenAI's text completions",
    ("server/fields.py", "draft_model"): "a field of other servers, refused by name",
}
#: Files that may name kinds: tables of what an experiment runs.
KIND_TABLES = {"testing/grid.py": "the equality grid declares its cells by name"}

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_CLASS_LINES, MAX_PARAMETERS = 400, 60, 250, 7
#: A device kernel is one function by nature, and takes pointers and constants one by one: it is launched by a function
#: that obeys the limits.
MAX_KERNEL_LINES = 120
#: Facade functions whose keywords are their documented interface; the reason is the docstring they carry.
PARAMETER_EXCEPTIONS: frozenset[str] = frozenset()


def read_sources(root: Path = SRC) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}


def _package_parts(path: str) -> list[str]:
    """Dotted package that a module's relative imports start from."""
    return [PACKAGE, *Path(path).parts[:-1]]


def _imported_modules(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports, at any depth, by statement or by ``import_module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in _from_targets(path, node))
        elif isinstance(node, ast.Call) and _called_name(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, _absolute(path, argument.value)


def _from_targets(path: str, node: ast.ImportFrom) -> Iterator[str]:
    base = _absolute(path, "." * node.level + (node.module or ""))
    for alias in node.names:
        yield f"{base}.{alias.name}"


def _absolute(path: str, name: str) -> str:
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    parts = _package_parts(path)
    return ".".join([*parts[: len(parts) - level + 1], *filter(None, [name[level:]])])


def _called_name(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def import_violations(sources: Mapping[str, str]) -> list[str]:
    """Imports that the table does not allow."""
    found = []
    for path, text in sources.items():
        room = Path(path).parts[0]
        if path.count("/") == 0:  # the package's own __init__ and __main__ hand out facades
            continue
        if room not in MAY_IMPORT:
            found.append(f"{path}: unknown room {room!r}")
            continue
        for line, target in _imported_modules(path, ast.parse(text)):
            parts = target.split(".")
            if parts[0] == PACKAGE and len(parts) > 1 and not _may_import(room, parts[1:]):
                found.append(f"{path}:{line} imports {target}")
    return found


def _may_import(room: str, target: list[str]) -> bool:
    """Whether a room may import ``paceline.<target>``."""
    other = target[0]
    if other in {room, "__version__"}:
        return True
    only = ONLY_MODULES.get((room, other))
    return other in MAY_IMPORT[room] and (only is None or ".".join(target[:2]) in only)


def eager_torch_violations(sources: Mapping[str, str]) -> list[str]:
    """Imports of torch or transformers at module level in rooms that must load without them."""
    found = []
    for path, text in sources.items():
        if path.count("/") and Path(path).parts[0] not in PURE_ROOMS:
            continue
        for node in _module_level(ast.parse(text)):
            for line, target in _imported_modules(path, node):
                if target.split(".")[0] in {"torch", "transformers", "triton"}:
                    found.append(f"{path}:{line} imports {target}")
    return found


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Import statements that run when the module is imported (not under ``TYPE_CHECKING``)."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting.extend(child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom))


def environment_violations(sources: Mapping[str, str]) -> list[str]:
    """Reads of the process environment outside the one module for it."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    found = []
    for path, text in sources.items():
        if path == ENVIRONMENT_MODULE:
            continue
        for node in ast.walk(ast.parse(text)):
            attribute = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
            imported = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
            if attribute or imported:
                found.append(f"{path}:{getattr(node, 'lineno', 0)} reads the environment")
    return found


def kind_violations(sources: Mapping[str, str], kinds: frozenset[str]) -> list[str]:
    """String literals outside ``draft/`` that are the name of a drafter kind."""
    found = []
    for path, text in sources.items():
        if path.startswith("draft/") or path in KIND_TABLES:
            continue
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in kinds
            if named and (path, node.value) not in KIND_EXCEPTIONS:
                found.append(f"{path}:{node.lineno} names the drafter kind {node.value!r}")
    return found


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> int:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    own = 1 if in_class and positional and positional[0].arg in {"self", "cls"} else 0
    return len(positional) - own + len(arguments.kwonlyargs)


def size_violations(sources: Mapping[str, str]) -> list[str]:
    """Files, functions and classes that are too long, functions with too many parameters."""
    found = []
    for path, text in sources.items():
        lines = text.count("\n")
        if lines >= MAX_FILE_LINES:
            found.append(f"{path}: {lines} lines")
        for name, node, in_class in _definitions(ast.parse(text)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.ClassDef):
                if length >= MAX_CLASS_LINES:
                    found.append(f"{path}:{node.lineno} class {name}: {length} lines")
                continue
            if _is_kernel(node):
                if length >= MAX_KERNEL_LINES:
                    found.append(f"{path}:{node.lineno} kernel {name}: {length} lines")
                continue
            if length >= MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {name}: {length} lines")
            count = _parameters(node, in_class)
            if count > MAX_PARAMETERS and f"{path}:{name}" not in PARAMETER_EXCEPTIONS:
                found.append(f"{path}:{node.lineno} {name}: {count} parameters")
    return found


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether Triton, or its lower level Gluon, compiles the function."""
    return any(
        name in ast.unparse(decorator) for name in ("triton.jit", "gluon.jit") for decorator in node.decorator_list
    )


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(tree: ast.AST, prefix: str = "", in_class: bool = False) -> Iterator[tuple[str, _Definition, bool]]:
    """Qualified name, node and "directly in a class" of every definition."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            name = f"{prefix}{node.name}"
            yield name, node, in_class
            yield from _definitions(node, f"{name}.", isinstance(node, ast.ClassDef))
        else:
            yield from _definitions(node, prefix, in_class)


def unfinished_violations(sources: Mapping[str, str]) -> list[str]:
    """Modules without an opening docstring, marks of unfinished work, unpickling."""
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    found = []
    for path, text in sources.items():
        tree = ast.parse(text)
        if ast.get_docstring(tree) is None:
            found.append(f"{path}: no opening docstring")
        for number, line in enumerate(text.splitlines(), 1):
            found.extend(f"{path}:{number} {mark}" for mark in marks if mark in line)
        found.extend(f"{path}:{line} unpickles" for line, name in _imported_modules(path, tree) if "pickle" in name)
    return found
