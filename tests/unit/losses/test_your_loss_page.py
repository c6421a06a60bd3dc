"""docs/your-loss.md, as it is written: its term passes its test, and its group trains on it."""

import yaml

from coordexp.config import load_config
from coordexp.train.setup.weighted_terms import weighted_terms
from tests.unit.losses.term_support import ROOT, drop

PAGE = (ROOT / "docs" / "your-loss.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the blocks of a language."""
    return [part.split("```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


def test_the_page_works_as_it_is_written(terms_dir, make_one_hot, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    term, test = blocks("python")
    drop(terms_dir, "spread", term)
    names: dict[str, object] = {}
    exec(compile(test, "test_spread.py", "exec"), names)
    names["test_by_hand"](make_one_hot)

    (group,) = blocks("yaml")
    base = str(ROOT / "experiments" / "base.yaml")
    path = tmp_path / "spread.yaml"
    groups = {"C_spread": yaml.safe_load(group), "C": yaml.safe_load((ROOT / "experiments/groups/C.yaml").read_text())}
    path.write_text(yaml.safe_dump({"extends": base, "ablation": {"groups": groups}}), encoding="utf-8")
    with_it, without = (
        {found.term.name: found.weight for found in weighted_terms(load_config(path).groups[name])}
        for name in ("C_spread", "C")
    )
    assert with_it == without | {"spread": 1.0}
