"""docs/your-loss.md, as it is written: what its commands write, changed as it says, passes and trains."""

import inspect

import pytest

from coordexp.config import load_config
from coordexp.scaffold.group import NewGroup, new_group
from coordexp.scaffold.loss import new_loss
from coordexp.scaffold.new_files import Places
from coordexp.shipped import shipped_experiments
from coordexp.train.setup.weighted_terms import weighted_terms
from tests.unit.losses.term_support import ROOT

PAGE = (ROOT / "docs" / "your-loss.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the blocks of a language."""
    return [part.split("```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


def changed(text: str, diff: str) -> str:
    """Return a text with the hunks of a page in it; each must fit once."""
    for hunk in diff.split("@@ ")[1:]:
        lines = hunk.splitlines()[1:]
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture
def term_and_test(terms_dir, tmp_path):
    """The files that the page's first command writes, changed as the page says."""
    files = new_loss("spread", Places(terms_dir, tmp_path))
    for file, diff in zip(files, blocks("diff"), strict=True):
        file.write_text(changed(file.read_text(encoding="utf-8"), diff), encoding="utf-8")
    return files


def test_the_term_passes_its_test(term_and_test):
    names: dict[str, object] = {}
    exec(compile(term_and_test[1].read_text(encoding="utf-8"), str(term_and_test[1]), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_") and inspect.isfunction(value)]
    assert len(tests) == 5
    for test in tests:
        test()


def test_the_value_by_hand_of_the_page_is_not_that_of_the_example(terms_dir, tmp_path):
    _, test = new_loss("spread", Places(terms_dir, tmp_path))
    names: dict[str, object] = {}
    exec(compile(changed(test.read_text(encoding="utf-8"), blocks("diff")[1]), "test_spread.py", "exec"), names)
    with pytest.raises(AssertionError):
        names["test_by_hand"]()


@pytest.mark.usefixtures("term_and_test")
def test_the_group_is_the_one_of_the_page_and_trains_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "experiments"
    (folder / "groups").mkdir(parents=True)
    for name in ("base.yaml", "tiny.yaml", "groups/C.yaml"):
        (folder / name).write_text((shipped_experiments() / name).read_text(encoding="utf-8"), encoding="utf-8")
    file, _ = new_group(NewGroup("C_spread", "C", "spread", 1.0, folder / "tiny.yaml"), Places(folder, None))
    (page,) = blocks("yaml")
    written = file.read_text(encoding="utf-8").replace(str(folder), "experiments")
    assert written.splitlines()[1:] == page.splitlines()[1:]
    config = load_config(folder / "tiny.yaml", ["ablation.groups=[C, C_spread]"])
    with_it, without = (
        {found.term.name: found.weight for found in weighted_terms(config.groups[name])} for name in ("C_spread", "C")
    )
    assert with_it == without | {"spread": 1.0}
