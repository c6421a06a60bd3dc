"""``coordexp new loss``: what is written, and what is refused with nothing written."""

import pytest

from coordexp.cli.main import main
from coordexp.errors import ConfigError
from coordexp.losses.terms import loss_terms
from coordexp.scaffold.loss import new_loss
from coordexp.scaffold.new_files import Places, write_new


@pytest.fixture
def places(terms_dir, tmp_path):
    """A folder of terms that runs look through, and one of tests."""
    return Places(terms_dir, tmp_path / "tests")


@pytest.mark.parametrize(
    ("name", "of_the_class"), [("spread", "Spread"), ("box_x2", "BoxX2"), ("term", "TermTerm"), ("none", "NoneTerm")]
)
def test_a_run_finds_the_term_and_the_test_is_about_it(places, name, of_the_class):
    term, test = new_loss(name, places)
    assert (term, test) == (places.terms / f"{name}.py", places.tests / "losses" / "terms" / f"test_{name}.py")
    assert loss_terms()[name].__name__ == of_the_class
    assert f"from coordexp.losses.terms.{name} import {of_the_class}\n" in test.read_text(encoding="utf-8")
    assert "$" not in term.read_text(encoding="utf-8") + test.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["Spread", "2d", "_spread", "a-b", "a b", "", "../x", "lambda", "x" * 41, "spréad"])
def test_a_name_that_is_none_is_refused(places, name):
    with pytest.raises(ConfigError, match="expected the name of a Python file"):
        new_loss(name, places)


def test_a_name_that_is_taken_is_refused(places):
    with pytest.raises(ConfigError, match="there is a loss term box_l1 already"):
        new_loss("box_l1", places)
    new_loss("mine", places)
    (places.terms / "mine.py").unlink()
    with pytest.raises(ConfigError, match=r"test_mine\.py: is there already"):
        new_loss("mine", places)
    assert "mine" not in loss_terms()  # not even half of it


def test_outside_of_a_checkout_the_test_lies_where_one_is(terms_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Places(terms_dir, None).test_of("spread", "losses", "terms") == tmp_path / "test_spread.py"
    assert Places.here().tests is not None


@pytest.mark.parametrize("is_file", [True, False])
def test_where_one_file_cannot_be_written_none_is(tmp_path, monkeypatch, is_file):
    first, folder = tmp_path / "first.py", tmp_path / "folder"
    if is_file:
        folder.write_text("", encoding="utf-8")
    else:
        folder.mkdir()
        monkeypatch.setattr("coordexp.scaffold.new_files.os.access", lambda place, _: place != folder)
    with pytest.raises(ConfigError, match=r"folder/second\.py: cannot be written, since .* is no folder"):
        write_new({first: "a", folder / "second.py": "b"})
    assert not first.exists()


def test_what_was_written_goes_where_the_disk_ends(tmp_path, monkeypatch):
    from coordexp.scaffold import new_files

    real = new_files.write_text

    def full(path, text):
        if path.name == "second.py":
            raise OSError(28, "No space left on device", str(path))
        real(path, text)

    monkeypatch.setattr(new_files, "write_text", full)
    with pytest.raises(ConfigError, match=r"second\.py: cannot be written \(No space left on device\)"):
        write_new({tmp_path / "first.py": "a", tmp_path / "second.py": "b"})
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_wrote_and_what_comes_next(places, capsys, monkeypatch):
    monkeypatch.setattr(Places, "here", classmethod(lambda cls: places))
    assert main(["new", "loss", "spread"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"written: {places.terms}/spread.py", f"written: {places.tests}/losses/terms/test_spread.py"]
    assert lines[2].endswith(f"-m pytest -q {places.tests}/losses/terms/test_spread.py")
    assert lines[3].endswith("new group C_spread --term spread")
    assert main(["new", "loss", "spread"]) == 2
    assert capsys.readouterr().err.startswith("error: there is a loss term spread already")
