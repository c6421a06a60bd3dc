"""Locals are called what they hold, and public functions say what they do (CONTRIBUTING, "How the code reads")."""

from pathlib import Path

import pytest

from tests.support.house import read_folder, read_source

PACKAGE = Path(__file__).parents[2] / "coordexp"

SOURCE = '''
at = 1


class Store:
    def load(self, path):
        """Read a file."""
        found = open(path)
        lines = [it for it in found]
        if (rest := len(lines)) > 2:
            return rest
        return None

    def save(self, path):
        a = 1
        b = 2
        c = 3
        return a + b + c

    def close(self):
        return 1


def _helper():
    a = 1
    b = 2
    c = 3
    return a + b + c


def many(a, b, c, d, e, f):
    return a


def outer():
    """Hold a nested function."""

    def inner():
        a = 1
        b = 2
        c = 3
        return a + b + c

    return inner
'''


@pytest.fixture(scope="module")
def package():
    return read_folder(PACKAGE)


def test_no_local_has_a_name_that_says_nothing(package) -> None:
    assert package.local_names > 1_000
    assert [str(place) for place in package.empty_names] == []


def test_public_functions_over_three_lines_have_a_docstring(package) -> None:
    assert [str(place) for place in package.undocumented] == []


def test_the_counter_finds_what_it_should() -> None:
    facts = read_source(SOURCE, Path("store.py"))

    # A name of the module is no local; targets of comprehensions and of := are.
    assert [(place.line, place.name) for place in facts.empty_names] == [(8, "found"), (9, "it"), (10, "rest")]
    # Private, nested and short functions need none; six parameters do.
    assert [place.name for place in facts.undocumented] == ["save", "many"]
    assert (facts.comprehensions, facts.walruses) == (1, 1)


def test_a_folder_without_python_cannot_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path)
