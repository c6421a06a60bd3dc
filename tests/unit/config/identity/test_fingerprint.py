import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from coordexp.config import ExperimentConfig, Fingerprint, check_comparable, diff, fingerprint, load_config
from coordexp.config.identity.differences import rounding_only, went_on
from coordexp.config.identity.fingerprint import git_state, package_versions
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue

FACTOR = ("objective", "custom.coord_soft_ce_w1")
EXPERIMENTS = Path(__file__).parents[4] / "experiments"
HASHES = {"data": "d" * 64, "weights": "w" * 64, "tokens": "t" * 64}
CRITERION = "coordexp/losses/criterion.py"
SMOOTH = "coordexp/losses/terms/smooth_l1.py"
CODE = {CRITERION: "c"}


def _config(**sections: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate(sections)


def _fingerprint(
    config: ExperimentConfig | None = None, *, code: dict[str, str] | None = None, **hashes: str | None
) -> Fingerprint:
    return fingerprint(config or _config(), code=code or CODE, packages={"torch": "2.13.0"}, **(HASHES | hashes))


def _run(*, seed: int = 0, tokens: str = "t", objective: object = None, **sections: object) -> Fingerprint:
    config = _config(experiment={"seed": seed}, objective=objective or {}, **sections)
    return _fingerprint(config, tokens=tokens)


@pytest.mark.parametrize(
    ("asked", "gpus", "is_on"), [(None, 0.0, True), (None, 1.0, False), (True, 1.0, True), (False, 0.0, False)]
)
def test_a_fingerprint_says_whether_algorithms_repeat_every_bit(asked, gpus, is_on):
    """What the device decides is written as what it is: only so do runs on a CPU and on a GPU differ in it."""
    found = _fingerprint(_config(training={"deterministic": asked}, cluster={"gpus_per_worker": gpus}))
    assert found.config["training"]["deterministic"] is is_on


@pytest.mark.parametrize(
    "sections",
    [
        {"experiment": {"name": "other", "group": "B", "runs_dir": "/elsewhere"}},
        {"tracking": {"uri": "http://other"}},
        {"cluster": {"executor": "inline", "max_concurrent_runs": 3, "max_failures": 0}},
        {"ablation": {"groups": {"A": {}}, "seeds": [1, 2]}},
        {"data": {"num_workers": 4, "image_cache_mib": 9, "train_images": "/moved"}},
        {"model": {"path": "/copy/of/base"}},
        {"training": {"logging_steps": 3, "checkpoint_steps": 5, "keep_checkpoints": 9}},
    ],
)
def test_what_changes_no_number_changes_no_fingerprint(sections: dict[str, object]):
    assert _fingerprint(_config(**sections)).short == _fingerprint().short
    # The configurations do differ, and diff says so.
    assert diff(_config(**sections), _config())


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"experiment": {"seed": 1}}, "experiment.seed"),
        ({"training": {"learning_rate": 2e-4}}, "training.learning_rate"),
        ({"training": {"num_threads": 1}}, "training.num_threads"),
        ({"objective": {"lambda_coord": 2.0}}, "objective.lambda_coord"),
        ({"data": {"shapes": {"seed": 4}}}, "data.shapes.seed"),
        ({"model": {"dtype": "float32"}}, "model.dtype"),
    ],
)
def test_what_changes_a_number_is_named(sections: dict[str, object], key: str):
    assert set(diff(_fingerprint(), _fingerprint(_config(**sections)))) == {key}


@pytest.mark.parametrize("name", ["data", "weights", "tokens"])
def test_each_hash_counts(name: str):
    other = _fingerprint(**{name: "0" * 64})
    assert diff(_fingerprint(), other) == {name: (HASHES[name], "0" * 64)}
    assert other.short != _fingerprint().short


def test_evaluation_settings_are_hashed_too():
    found = diff(_fingerprint(), _fingerprint(_config(evaluation={"score": "coord"})))
    assert found["evaluation.score"] == ("coord_desc", "coord")
    assert set(found) == {"evaluation.score", "evaluation"}


def test_json_round_trip():
    original = fingerprint(_config(training={"learning_rate": 3e-5}))
    assert Fingerprint.from_json(original.to_json()) == original
    assert json.loads(original.to_json())["packages"] == package_versions()
    assert original.code[CRITERION]
    text_for_code = json.dumps(json.loads(original.to_json()) | {"code": "c"})
    for bad in ("{", "{}", "[1]", '{"config": {}}', text_for_code):
        with pytest.raises(ComparisonError, match="fingerprint"):
            Fingerprint.from_json(bad)


def test_the_commit_is_recorded_and_not_compared(tmp_path: Path):
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert git_state(tmp_path / "nowhere") == {}
    git("init", "-q")
    assert git_state(tmp_path) == {}  # no commit yet
    (tmp_path / "x.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    git_state.cache_clear()
    clean = git_state(tmp_path)
    assert clean == {"commit": git("rev-parse", "HEAD")}
    found = set()
    for change in (lambda: (tmp_path / "x.py").write_text("2"), lambda: (tmp_path / "y.py").touch()):
        change()
        git_state.cache_clear()
        assert git_state(tmp_path)["commit"] == clean["commit"]
        found.add(git_state(tmp_path)["changes"])
    assert len(found) == 2
    git_state.cache_clear()
    first = _fingerprint()
    other = dataclasses.replace(first, source=clean)
    assert first.short == other.short
    assert diff(first, other) == {}
    assert Fingerprint.from_json(other.to_json()).source == clean


def test_groups_of_an_experiment_are_comparable():
    config = load_config(EXPERIMENTS / "tiny.yaml", ["ablation.groups=[A, B, C, D, B_gate, C_D]"])
    runs = {
        f"{group}-s{seed}": _fingerprint(config.run(group, seed), tokens=f"t{seed}")
        for group in config.ablation.groups
        for seed in (0, 1)
    }
    check_comparable(runs, config.ablation.factor)
    with pytest.raises(ComparisonError, match=r"objective\.use_coord_ce"):
        check_comparable(runs, ["custom.coord_soft_ce_w1"])


def test_a_difference_outside_the_factor_is_shown_as_a_table():
    runs = {
        "A-s0": _run(),
        "B-s0": _run(objective={"lambda_coord": 2.0}, training={"learning_rate": 2e-4, "max_steps": 7}),
    }
    with pytest.raises(ComparisonError) as caught:
        check_comparable(runs, FACTOR)
    assert str(caught.value).splitlines() == [
        f"runs differ in more than the declared factor ({', '.join(FACTOR)}), so they cannot be compared:",
        "  training.learning_rate  A-s0: 0.0001  B-s0: 0.0002",
        "  training.max_steps      A-s0: 1000    B-s0: 7",
        "--allow-differences shows them beside the results instead",
    ]


def test_one_seed_must_have_one_token_stream():
    with pytest.raises(ComparisonError, match=r"tokens +A-s0: \"t\" +B-s0: \"u\""):
        check_comparable({"A-s0": _run(tokens="t"), "B-s0": _run(tokens="u")}, FACTOR)


def test_seeds_explain_their_tokens_and_nothing_else():
    runs = {"A-s0": _run(), "B-s0": _run(), "A-s1": _run(seed=1, tokens="u"), "B-s1": _run(seed=1, tokens="u")}
    check_comparable(runs, FACTOR)
    with pytest.raises(ComparisonError, match=r"A-s1: \"u\" +B-s1: \"v\""):
        check_comparable(runs | {"B-s1": _run(seed=1, tokens="v")}, FACTOR)
    with pytest.raises(ComparisonError, match=r"training\.max_steps +A-s0: 1000 +A-s1: 7"):
        check_comparable({"A-s0": _run(), "A-s1": _run(seed=1, tokens="u", training={"max_steps": 7})}, FACTOR)


def test_the_factor_explains_the_hashes_that_follow_from_it():
    native, spec = _run(tokens="t"), _run(tokens="u", data={"structure": "spec"})
    check_comparable({"native": native, "spec": spec}, ["data.structure"])
    with pytest.raises(ComparisonError, match=r"data\.structure"):
        check_comparable({"native": native, "spec": spec}, FACTOR)
    # Nothing declared differs, so nothing explains other tokens.
    with pytest.raises(ComparisonError, match="tokens"):
        check_comparable({"native": native, "again": _run(tokens="u")}, ["data.structure"])


def test_code_and_packages_are_never_explained():
    factor = ["experiment", "model", "data", "training", "custom", "objective", "evaluation", "cluster"]
    with pytest.raises(ComparisonError, match=rf"{CRITERION} +A: \"c\" +B: \"0\""):
        check_comparable({"A": _fingerprint(), "B": _fingerprint(code={CRITERION: "0"})}, factor)
    other = fingerprint(_config(), code=CODE, packages={"torch": "2.14.0"}, **HASHES)
    with pytest.raises(ComparisonError, match=r"packages\.torch +A: \"2\.13\.0\" +B: \"2\.14\.0\""):
        check_comparable({"A": _fingerprint(), "B": other}, factor)


def test_sources_of_other_terms_are_explained_by_the_terms_of_the_groups():
    extra = _config(objective={"extra": {"smooth_l1": 0.5}})
    plain, own = _fingerprint(), _fingerprint(extra, code=CODE | {SMOOTH: "s"})
    check_comparable({"A": plain, "S": own}, FACTOR)
    with pytest.raises(ComparisonError, match=rf"objective\.extra\.smooth_l1\.weight[\s\S]*{SMOOTH}"):
        check_comparable({"A": plain, "S": own}, ["objective.lambda_coord"])
    # The same term, edited between two runs: each has the file, and nothing explains another one.
    edited = _fingerprint(extra, code=CODE | {SMOOTH: "t"})
    with pytest.raises(ComparisonError, match=rf"\n  {SMOOTH} +S: \"s\" +S \(before\): \"t\"\n"):
        check_comparable({"S": own, "S (before)": edited}, FACTOR)
    # Also where the run that the others are compared with has no such file.
    with pytest.raises(ComparisonError, match=rf"\n  {SMOOTH} +S: \"s\" +S \(before\): \"t\"\n"):
        check_comparable({"A": plain, "S": own, "S (before)": edited}, FACTOR)
    # A difference of a weight explains no file.
    other = _fingerprint(_config(objective={"lambda_coord": 2.0}), code=CODE | {SMOOTH: "s"})
    with pytest.raises(ComparisonError, match=SMOOTH):
        check_comparable({"A": plain, "B": other}, FACTOR)


def test_a_new_metric_is_no_difference_and_an_edited_one_is():
    metric = "coordexp/detection/metrics/counts.py"
    with_it, edited = _fingerprint(code=CODE | {metric: "1"}), _fingerprint(code=CODE | {metric: "2"})
    check_comparable({"before": _fingerprint(), "now": with_it}, FACTOR)
    assert with_it.evaluation == _fingerprint().evaluation
    assert with_it.short == _fingerprint().short  # an interrupted run goes on, with one metric more
    with pytest.raises(ComparisonError, match=metric):
        check_comparable({"before": with_it, "now": edited}, FACTOR)


def _read(item: Fingerprint, **worker: JsonValue) -> Fingerprint:
    return dataclasses.replace(item, worker=worker)


@pytest.mark.parametrize("name", ["base/config.json", "base/chat_template.jinja", "deepspeed/zero2.json"])
def test_each_file_that_is_read_counts(name):
    runs = {
        run: dataclasses.replace(_run(seed=seed), files={name: value})
        for run, seed, value in (("A", 0, "1"), ("B", 1, "2"))
    }
    with pytest.raises(ComparisonError, match=rf'\n  {name} +A: "1" +B: "2"'):
        check_comparable(runs, FACTOR)
    assert runs["A"].short != runs["B"].short


def test_a_base_that_the_factor_changes_may_have_other_files():
    runs = {
        "native": dataclasses.replace(_run(), files={"base/config.json": "1"}, worker={"model.settings": "1"}),
        "spec": dataclasses.replace(
            _run(tokens="u", data={"structure": "spec"}),
            files={"base/config.json": "2"},
            worker={"model.settings": "2"},
        ),
    }
    check_comparable(runs, ["data.structure"])
    with pytest.raises(ComparisonError, match=r"base/config\.json[\s\S]*worker\.model\.settings"):
        check_comparable(runs, FACTOR)


def test_what_workers_found_is_compared_once_it_is_read():
    runs = {"A": _run(), "B": _read(_run(), threads=1), "C": _read(_run(), threads=2), "D": _run()}
    with pytest.raises(ComparisonError, match=r"\n  worker\.threads  B: 1  C: 2\n"):
        check_comparable(runs, FACTOR)
    check_comparable({name: item for name, item in runs.items() if name != "C"}, FACTOR)
    # A run that goes on knows itself again, whatever was read in between.
    assert runs["A"].short == runs["B"].short
    # A thing that only one worker has, as a variable of the environment.
    with pytest.raises(ComparisonError, match=r'worker\.environment\.MKL_CBWR +B: null +E: "AVX2"'):
        check_comparable(
            runs | {"C": runs["B"], "E": _read(_run(), threads=1, **{"environment.MKL_CBWR": "AVX2"})}, FACTOR
        )


STEP_OF_8 = {"training": {"per_device_batch_size": 2, "gradient_accumulation_steps": 2}, "cluster": {"num_workers": 2}}


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({"training": {"num_threads": 2}}, {"threads": 2}),
        ({"cluster": {"cpus_per_worker": 2}}, {"threads": 2}),
        ({"training": {"deterministic": False}}, {"deterministic": False}),
        (STEP_OF_8, {}),
    ],
)
def test_what_changes_rounding_only_may_differ_and_is_kept_in_turn(sections, found):
    """A run may go on so, and stand beside another that had ended; the run is the same one to MLflow."""
    before = {"threads": 1, "deterministic": True}
    first, now = _read(_run(), **before), _run(**sections)
    assert rounding_only(diff(first, now))
    assert first.short == now.short
    again = went_on(first, now)
    assert {key: list(values) for key, values in again.went_on.items()} == {
        key: list(values) for key, values in rounding_only(diff(first, now)).items()
    }
    resumed = dataclasses.replace(again, worker={**before, **found})
    check_comparable({"C (before)": again, "C": resumed, "A": first}, FACTOR)
    back = dataclasses.replace(went_on(resumed, _run()), worker=before)
    assert all(values[0] == values[2] for values in back.went_on.values())
    check_comparable({"C (before)": resumed, "C": back, "A": first}, FACTOR)
    # Without such a key nothing explains what the worker found.
    for name, value in found.items():
        with pytest.raises(ComparisonError, match=rf"worker\.{name}"):
            check_comparable({"A": first, "C": _read(_run(), **before | {name: value})}, FACTOR)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"cluster": {"num_workers": 2}}, "training.global_batch_size"),
        ({"training": {"gradient_accumulation_steps": 2}}, "training.global_batch_size"),
        ({"cluster": {"gpus_per_worker": 1}}, "cluster.gpus_per_worker"),
    ],
)
def test_another_step_or_a_gpu_where_there_was_none_is_more_than_rounding(sections, key):
    with pytest.raises(ComparisonError, match=rf"(?m)^  {key} "):
        check_comparable({"A": _run(), "C": _run(**sections)}, FACTOR)
