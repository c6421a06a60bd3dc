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
    assert "--dry-rnu" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--max_steps", "--max-steps=20", "--training.max_steps"])
def test_a_key_written_as_an_option_is_answered_with_the_key(option: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["ablation", "--dry-run", option, "20"])
    error = capsys.readouterr().err
    assert option in error
    assert " training.max_steps=VALUE" in error, "the key as it is typed"


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
    ("arguments", "facts"),
    [
        (["--group", "Z"], ["'Z'", "A, B, C"]),
        (["training.max_stpes=3"], ["training.max_stpes", "training.max_steps?"]),
        (["training.max_steps=x"], ["training.max_steps", "'x'", "integer"]),
        (["objective.extra={smoth_l1: 1}", "--dry-run"], ["objective.extra.smoth_l1"]),
    ],
)
def test_wrong_runs_are_refused_before_anything_is_written(
    arguments: list[str], facts: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", TINY, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    for fact in facts:
        assert fact in error
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_samples_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = [f"experiment.runs_dir={tmp_path}", "data.shapes.num_train=8", "data.shapes.num_val=4"]
    config = str(Path(__file__).parents[3] / "experiments" / "tiny.yaml")
    assert main(["inspect", "--config", config, "--num", "2", *small]) == 0
    text = capsys.readouterr().out
    assert text.count("<|im_start|>assistant") == 2
    drawn = sorted((tmp_path / "tiny" / "inspect").glob("train_*.png"))
    assert len(drawn) == 2
    assert all(file.name in text for file in drawn)


def test_prepare_shapes(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    output = tmp_path / "shapes"
    argv = ["prepare", "shapes", "--output", str(output), "--num-train", "3", "--num-val", "2", "--seed", "4"]
    assert main(argv) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{output}: 3 ")
    assert " 2 " in line
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
    assert captured.out.endswith(f" {ids.start}..{ids.stop - 1}\n")
    assert loaded.model.get_input_embeddings().weight.shape[0] >= ids.stop
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert main(["expand-vocab", "--model", str(base), "--output", str(output)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {output}: ")
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
