"""How the package reads, in numbers; what of it `make lint` insists on.

    python -m tests.support.house            the figures, beside three packages that read well
    python -m tests.support.house --check    exit 1 for a name that says nothing, or a docstring that is missing

A figure shows where to look. None is a target: a figure that gets better while the reading gets worse is a fault of the
figure, so `--check` looks at names and docstrings alone.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Local names that say nothing about what they hold: a reader who enters in the middle has to scroll back for them.
NAMES_THAT_SAY_NOTHING = {
    "found", "own", "said", "at", "there", "one", "known", "it", "part", "parts", "given", "kept", "made",
    "has", "of", "this", "that", "what", "thing", "others", "two", "both", "rest", "some", "every", "told",
    "asked", "wanted",
}  # fmt: skip
LINES_WITHOUT_DOCSTRING = 3  # a body this short says what it does by its name
PARAMETERS_WITH_DOCSTRING = 6
_NODES_OF_A_DOCSTRING = 2  # a statement and its text

# Of the releases of November 2026.
OTHER_PACKAGES = {
    "AST nodes per code line": "5.8 / 5.2 / 6.9",
    "comprehensions per 1,000 code lines": "13 / 18 / 9",
    "conditional expressions per 1,000 code lines": "6 / 9 / 5",
    "walrus per 1,000 code lines": "0.3 / 0.4 / 0.3",
    "names that say nothing, % of local names": "0.3 / 0.2 / 0.1",
    "comment lines, % of lines": "6.4 / 4.5 / 10.7",
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """Something in a file that a reader should look at.

    Attributes:
        path: the file.
        line: its line, from 1.
        name: the local name, or the function.
    """

    path: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


@dataclass
class FileFacts:
    """What one file holds; counts of several files add up.

    Attributes:
        empty_names: locals called by a name of :data:`NAMES_THAT_SAY_NOTHING`.
        undocumented: public functions that need a docstring and have none.
    """

    lines: int = 0
    code_lines: int = 0
    comment_lines: int = 0
    nodes: int = 0
    local_names: int = 0
    comprehensions: int = 0
    conditional_expressions: int = 0
    walruses: int = 0
    empty_names: list[Place] = field(default_factory=list)
    undocumented: list[Place] = field(default_factory=list)

    def add(self, other: "FileFacts") -> None:
        """Add the counts and places of another file."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def read_folder(folder: Path) -> FileFacts:
    """Return what all Python files of a folder hold.

    Raises:
        FileNotFoundError: if the folder holds no Python file, so that a check cannot pass on nothing.
    """
    paths = sorted(folder.rglob("*.py"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no Python file")
    total = FileFacts()
    for path in paths:
        total.add(read_source(path.read_text(encoding="utf-8"), path))
    return total


def read_source(text: str, path: Path) -> FileFacts:
    """Return what one file's text holds; ``path`` is only named in places."""
    tree = ast.parse(text)
    docstrings = docstrings_in(tree)
    docstring_lines: set[int] = set()
    for docstring in docstrings:
        docstring_lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    code_lines, comment_lines = lines_of_code_and_comments(text)
    facts = FileFacts(
        lines=text.count("\n"),
        code_lines=len(code_lines - docstring_lines),
        comment_lines=len(comment_lines - code_lines),
        nodes=-_NODES_OF_A_DOCSTRING * len(docstrings),  # they are counted below with all others
    )
    _visit(tree, facts, path, enclosing=(tree,))
    return facts


def _visit(node: ast.AST, facts: FileFacts, path: Path, *, enclosing: tuple[ast.AST, ...]) -> None:
    """Count a node and all below it; ``enclosing`` holds the module, classes and functions around it."""
    facts.nodes += 1
    is_in_function = any(isinstance(scope, FunctionNode) for scope in enclosing)
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        facts.comprehensions += 1
    elif isinstance(node, ast.IfExp):
        facts.conditional_expressions += 1
    elif isinstance(node, ast.NamedExpr):
        facts.walruses += 1
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and is_in_function:
        facts.local_names += 1
        if node.id in NAMES_THAT_SAY_NOTHING:
            facts.empty_names.append(Place(path, node.lineno, node.id))
    elif isinstance(node, FunctionNode) and not is_in_function and needs_docstring(node):
        facts.undocumented.append(Place(path, node.lineno, node.name))

    opens_scope = isinstance(node, ast.ClassDef | FunctionNode)
    inner = (*enclosing, node) if opens_scope else enclosing
    for child in ast.iter_child_nodes(node):
        _visit(child, facts, path, enclosing=inner)


def needs_docstring(function: FunctionNode) -> bool:
    """Whether a function is public, does more than its name says, and has no docstring."""
    if function.name.startswith("_") or ast.get_docstring(function):
        return False
    first, last = function.body[0], function.body[-1]
    num_lines = (last.end_lineno or last.lineno) - first.lineno + 1
    arguments = function.args
    num_parameters = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return num_lines > LINES_WITHOUT_DOCSTRING or num_parameters >= PARAMETERS_WITH_DOCSTRING


def docstrings_in(tree: ast.Module) -> list[ast.stmt]:
    """Return the docstrings of a module, its classes and its functions."""
    documented = ast.Module | ast.ClassDef | FunctionNode
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    return [node.body[0] for node in nodes if ast.get_docstring(node, clean=False)]


def lines_of_code_and_comments(text: str) -> tuple[set[int], set[int]]:
    """Return the lines that hold a token of code, and the lines that hold a comment; a line may be both."""
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    return code, comments


def figures(facts: FileFacts) -> Iterator[tuple[str, float]]:
    """Yield each figure with its name, as :data:`OTHER_PACKAGES` spells it."""
    thousands = facts.code_lines / 1000
    yield "AST nodes per code line", facts.nodes / facts.code_lines
    yield "comprehensions per 1,000 code lines", facts.comprehensions / thousands
    yield "conditional expressions per 1,000 code lines", facts.conditional_expressions / thousands
    yield "walrus per 1,000 code lines", facts.walruses / thousands
    yield "names that say nothing, % of local names", 100 * len(facts.empty_names) / facts.local_names
    yield "comment lines, % of lines", 100 * facts.comment_lines / facts.lines


def main() -> int:
    """Print the figures, or with ``--check`` the places that `make lint` refuses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("coordexp"))
    parser.add_argument("--check", action="store_true", help="exit 1 for an empty name or a missing docstring")
    options = parser.parse_args()

    facts = read_folder(options.folder)
    if not options.check:
        print(f"{'':48} {'here':>6}   torchtitan / lm-eval / PEFT")
        for name, value in figures(facts):
            print(f"{name:48} {value:6.1f}   {OTHER_PACKAGES[name]}")
        return 0

    for place in facts.empty_names:
        print(f"{place}: call this local what it holds")
    for place in facts.undocumented:
        print(f"{place}: needs a docstring, one sentence that starts with a verb")
    return 1 if facts.empty_names or facts.undocumented else 0


if __name__ == "__main__":
    sys.exit(main())
