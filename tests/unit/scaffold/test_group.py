"""``coordexp new group``: one difference to its neighbour, and what is refused with nothing written."""

from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.errors import ConfigError
from coordexp.scaffold.group import NewGroup, new_group
from coordexp.scaffold.new_files import Places
from coordexp.shipped import find_experiment, shipped_experiments
from coordexp.train.setup.weighted_terms import weighted_terms

PLACES = Places(Path(), None)


@pytest.fixture
def experiment(tmp_path):
    """An experiment of one's own."""
    path = tmp_path / "own.yaml"
    path.write_text("extends: base.yaml\nexperiment: {name: own}\nmodel: {dtype: float32}\n", encoding="utf-8")
    (tmp_path / "base.yaml").symlink_to(find_experiment(Path("base.yaml")).absolute())
    (tmp_path / "groups").mkdir()
    for name in ("A", "C", "C_ciou"):
        text = (shipped_experiments() / "groups" / f"{name}.yaml").read_text(encoding="utf-8")
        (tmp_path / "groups" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return path


def group(experiment, name="mine", *, beside="C", term=None, weight=1.0):
    return NewGroup(name, beside, term, weight, experiment)


def weights(experiment, name):
    config = load_config(experiment, [f"ablation.groups=[{name}]"])
    return {found.term.name: found.weight for found in weighted_terms(config.groups[name])}


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        ({}, {"box_l1": 2.0, "box_giou": 2.0}),
        ({"term": "emd2", "weight": 10.0}, {"emd2": 10.0}),
        ({"term": "emd2", "beside": "A"}, {"emd2": 1.0}),
        ({"term": "emd2", "beside": "C_ciou"}, {"emd2": 1.0}),
        ({"term": "box_ciou", "beside": "C_ciou", "weight": 0.5}, {"box_ciou": 0.5}),
    ],
)
def test_it_differs_in_one_thing_and_its_test_says_so(experiment, wanted, difference):
    new = group(experiment, **wanted)
    file, test = new_group(new, PLACES)
    assert file == experiment.parent / "groups" / "mine.yaml"
    assert weights(experiment, "mine") == weights(experiment, new.beside) | difference
    names: dict[str, object] = {"__file__": str(test)}
    exec(compile(test.read_text(encoding="utf-8"), str(test), "exec"), names)
    check = names["test_it_differs_from_its_neighbour_in_this_alone"]
    check()
    file.write_text(file.read_text(encoding="utf-8").replace("use_coord_ce: true", "use_coord_ce: false"))
    with pytest.raises(AssertionError):
        check()


def test_the_file_reads_like_a_shipped_one(experiment):
    file, _ = new_group(group(experiment, "C_emd2", term="emd2"), PLACES)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Group C, and emd2 at weight 1: write here what it is to show."
    assert "experiment.name=C_emd2 'ablation.groups=[C, C_emd2]'" in lines[1]
    assert lines[-3:] == [
        "objective: {use_coord_ce: true, use_coordexp_loss: true, use_geom_loss: true, extra: {emd2: 1.0}}",
        "custom:",
        "  coord_soft_ce_w1: {enabled: false}",
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"name": "a b"}, "as the name of a group; expected a letter"),
        ({"name": "../x"}, "as the name of a group"),
        ({"name": "null"}, "no word that YAML reads as something else"),
        ({"name": "C"}, r"groups/C\.yaml: is there already"),
        ({"beside": "Cx"}, r"there is no file .*Cx\.yaml for group 'Cx'; did you mean C"),
        ({"beside": "A"}, "group A has no geometric loss whose weight an example could change; expected --term"),
        ({"term": "emd3"}, r"objective\.extra\.emd3: there is no such loss term; did you mean emd2"),
        ({"term": "gate"}, r"objective\.extra\.gate: this term has a switch of its own"),
        ({"term": "ntl"}, r"objective\.extra\.ntl: this term reads digits"),
        ({"term": "box_ciou", "beside": "C_ciou"}, "group C_ciou has box_ciou at weight 1 already; give another one"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(experiment, wanted, message):
    before = sorted(experiment.parent.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        new_group(group(experiment, **wanted), PLACES)
    assert sorted(experiment.parent.rglob("*")) == before


def test_the_command_says_what_it_wrote_and_what_comes_next(experiment, capsys, monkeypatch):
    monkeypatch.chdir(experiment.parent)
    assert main(["new", "group", "C_emd2", "--term", "emd2=2", "--config", "own.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["written: groups/C_emd2.yaml", "written: groups/test_C_emd2.py"]
    assert lines[3].endswith("ablation --config own.yaml experiment.name=C_emd2 'ablation.groups=[C, C_emd2]'")
    for wrong in ("emd2=", "emd2=-1", "emd2=inf", "=2", "emd2=nan"):
        assert main(["new", "group", "x", "--term", wrong, "--config", "own.yaml"]) == 2
        assert f"--term {wrong}: expected the name of a loss term" in capsys.readouterr().err
