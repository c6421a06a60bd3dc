"""Finds in the source which private names of Ray, transformers, PEFT and MLflow coordexp uses.

Read off the syntax: imports, what is asked of an imported module, and every ``x._name`` of an object that is not ours.
A class that extends one of theirs is imported, because only the class knows which of its names it takes over.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.upgrade.names import OF_OTHERS, PACKAGES, UNDOCUMENTED_MODULES, PrivateName, is_set_in

_OURSELVES = ("self", "cls", "super()")


@dataclass(frozen=True)
class Use:
    """A private name in a file: with its module, or as ``._name`` where the source does not say whose it is."""

    path: str
    file: str
    line: int

    def is_by(self, name: PrivateName) -> bool:
        """Return whether this use is the one that a listed name stands for."""
        if self.path.startswith("._"):
            return name.path.endswith(self.path)
        used, listed = f"{self.path}.", f"{name.path}."
        # To import a class is no use of a name in it that begins with an underscore: that shows by itself.
        return used.startswith(listed) or (listed.startswith(used) and not is_private(name.path.split(".")[-1]))


def find_uses(root: Path, *, folder: str = "coordexp") -> list[Use]:
    """Return every use below ``root / folder``, by file and line."""
    found: set[Use] = set()
    for path in sorted((root / folder).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {Use(name, file, line) for name, line in (*_by_syntax(tree), *_by_class(tree, file))}
    return sorted(found, key=lambda use: (use.file, use.line, use.path))


def unlisted(uses: list[Use], names: tuple[PrivateName, ...]) -> list[Use]:
    """Return the uses that no name on the list stands for."""
    return [use for use in uses if not any(use.is_by(name) for name in names)]


def is_private(name: str) -> bool:
    """Return whether one word begins with a single underscore."""
    return name.startswith("_") and not name.startswith("__")


def _is_private_path(path: str) -> bool:
    parts = path.split(".")
    return parts[0] in PACKAGES and (
        any(is_private(part) for part in parts) or any(f"{path}.".startswith(f"{m}.") for m in UNDOCUMENTED_MODULES)
    )


def _by_syntax(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield what imports and attributes say."""
    bound = dict(_imports(tree))
    for path, line in bound.values():
        if _is_private_path(path):
            yield path, line
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # a.b of a.b.c
    ourselves = {*_OURSELVES, *_copies(tree)}
    for node in ast.walk(tree):
        asked = _asked_by_text(node)
        if asked is not None:
            yield f".{asked}", node.lineno  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(node, ast.Attribute):
            continue
        path = _whole_path(node, bound)
        if path is not None and _is_private_path(path):
            if id(node) not in inner:
                yield path, node.lineno
            continue
        if is_private(node.attr) and node.attr not in OF_OTHERS and ast.unparse(node.value) not in ourselves:
            yield f".{node.attr}", node.lineno


def _copies(tree: ast.Module) -> Iterator[str]:
    """Yield the names of copies that an object makes of itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "copy(self)":
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield, of what is imported from the packages, the name here, the whole path and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.partition(".")[0] in PACKAGES:
                    # `import a.b` binds a, and still imports all of a.b.
                    yield item.asname or item.name, (item.name, node.lineno)
                    if item.asname is None:
                        yield item.name.partition(".")[0], (item.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            for item in node.names:
                yield item.asname or item.name, (f"{node.module}.{item.name}", node.lineno)


def _whole_path(node: ast.Attribute, bound: dict[str, tuple[str, int]]) -> str | None:
    """Return ``package.module.name`` for what is asked of an import, None for what is asked of anything else."""
    inner = node.value
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in bound:
        return None
    return bound[inner.id][0] + ast.unparse(node).removeprefix(inner.id)


def _asked_by_text(node: ast.AST) -> str | None:
    """Return the private name in ``getattr(x, "_name")``, its family, and ``vars(x)["_name"]``."""
    text: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        text = node.args[1] if node.func.id in ("getattr", "setattr", "hasattr", "delattr") else None
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
        text = node.slice if ast.unparse(node.value.func) == "vars" else None
    if isinstance(text, ast.Constant) and isinstance(text.value, str) and is_private(text.value):
        return None if text.value in OF_OTHERS else text.value
    return None


def _by_class(tree: ast.Module, file: str) -> Iterator[tuple[str, int]]:
    """Yield which private names of a class of theirs one of ours overrides, calls or sets."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not node.bases:
            continue
        cls = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), node.name, None)
        theirs = [base for base in getattr(cls, "__mro__", ()) if base.__module__.partition(".")[0] in PACKAGES]
        for name, line in _names_in(node):
            if any(name in vars(base) for base in theirs) or any(is_set_in(base, name) for base in theirs[:1]):
                yield f".{name}", line


def _names_in(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield the private names that a class defines, and those it asks of ``self`` and ``super()``."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_private(inner.name):
            yield inner.name, inner.lineno
        elif isinstance(inner, ast.Attribute) and is_private(inner.attr) and ast.unparse(inner.value) in _OURSELVES:
            yield inner.attr, inner.lineno
