import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.cli.main import VERBS, main, parse

ROOT = Path(__file__).parents[3]
TINY = str(Path(__file__).parents[3] / "experiments" / "tiny.yaml")


@pytest.mark.parametrize(
    "argv",
    [
        ["--config", "c.yaml", "a=1", "b.c=[2]", "--dry-run"],
        ["a=1", "--config", "c.yaml", "--dry-run", "b.c=[2]"],
        ["--dry-run", "a=1", "--config", "c.yaml", "b.c=[2]"],
    ],
)
def test_overrides_stand_anywhere(argv: list[str]):
    options = parse(["train", *argv])
    assert (options.overrides, options.config, options.dry_run) == (["a=1", "b.c=[2]"], Path("c.yaml"), True)
    assert parse(["train"]).overrides == []


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]):
    for argv in (["train", "--confg", "x"], ["train", "a=1", "--dry-rnu", "b=2"], ["merge", "--nope"], ["nope"], []):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
    assert "unrecognized arguments: --dry-rnu" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--max_steps", "--max-steps=20", "--training.max_steps"])
def test_a_key_written_as_an_option_is_answered_with_the_key(option: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["ablation", "--dry-run", option, "20"])
    assert f"{option}; a key is given without dashes, as in training.max_steps=VALUE" in capsys.readouterr().err


def test_dry_run_prints_the_resolved_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", "--config", TINY, "--group", "B", "--seed", "5", "--dry-run", "training.max_steps=3"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "max_steps: 3\n" in text
    assert "group: B\n  seed: 5\n" in text
    assert "use_geom_loss: true\n" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "Z"], "error: there is no group 'Z'; there is A, B, C\n"),
        (["training.max_stpes=3"], "unknown key training.max_stpes; did you mean training.max_steps?\n"),
        (["training.max_steps=x"], "training.max_steps: got 'x', expected an integer\n"),
        (["objective.extra={smoth_l1: 1}", "--dry-run"], "objective.extra.smoth_l1: there is no such loss term"),
    ],
)
def test_wrong_runs_are_refused_before_anything_is_written(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", TINY, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_samples_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = [f"experiment.runs_dir={tmp_path}", "data.shapes.num_train=8", "data.shapes.num_val=4"]
    config = str(Path(__file__).parents[3] / "experiments" / "tiny.yaml")
    assert main(["inspect", "--config", config, "--num", "2", *small]) == 0
    text = capsys.readouterr().out
    assert text.count("<|im_start|>assistant") == 2
    assert text.count("read back from the tokens") == 2
    drawn = sorted((tmp_path / "tiny" / "inspect").glob("train_*.png"))
    assert len(drawn) == 2
    assert all(file.name in text for file in drawn)


def test_prepare_shapes(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    output = tmp_path / "shapes"
    argv = ["prepare", "shapes", "--output", str(output), "--num-train", "3", "--num-val", "2", "--seed", "4"]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{output}: 3 training and 2 validation images\n"
    first = (output / "instances_train.json").read_bytes()
    assert len(json.loads(first)["images"]) == 3
    assert main(argv) == 0
    assert (output / "instances_train.json").read_bytes() == first
    assert main([*argv, "--seed", "5"]) == 0
    assert (output / "instances_train.json").read_bytes() != first


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base

    path = tmp_path_factory.mktemp("base") / "base"
    tokenizer = build_tokenizer()
    save_base(path, build_model(tokenizer), tokenizer)
    return path


def test_expand_vocab(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from coordexp.model.loading import load

    output = tmp_path / "expanded"
    assert main(["expand-vocab", "--model", str(base), "--output", str(output), "--structure", "spec"]) == 0
    loaded = load(output)
    assert loaded.vocab is not None
    assert loaded.vocab.structure == "spec"
    ids = loaded.vocab.coord_ids
    captured = capsys.readouterr()
    assert "it/s" not in captured.err
    assert captured.out.endswith(f"{output}: coordinate ids {ids.start}..{ids.stop - 1}\n")
    assert loaded.model.get_input_embeddings().weight.shape[0] >= ids.stop
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert main(["expand-vocab", "--model", str(base), "--output", str(output)]) == 2
    assert f"error: {output}: exists; expected a new folder" in capsys.readouterr().err
    assert main(["expand-vocab", "--model", str(tmp_path / "none"), "--output", str(tmp_path / "x")]) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does_and_takes(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: coordexp {verb} ")
    assert "--debug" in text


@pytest.mark.parametrize(
    ("door", "words"),
    [
        (["-m", "coordexp", "ablation"], "usage: coordexp ablation "),
        (["-m", "coordexp.report"], "usage: coordexp report "),
        (["ray_jobs/ablation.py"], "usage: coordexp ablation "),
        (["ray_jobs/sweep.py"], "usage: coordexp sweep "),
        (["ray_jobs/evaluate.py"], "usage: coordexp evaluate "),
        (["ray_jobs/merge.py"], "usage: coordexp merge "),
    ],
)
def test_every_door_leads_to_the_same_parser(door: list[str], words: str):
    done = subprocess.run([sys.executable, *door, "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith(words)
