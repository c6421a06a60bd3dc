"""What every key declares, and what is derived from it."""

import pytest

from coordexp.config.keys import LATER, STEP_IMAGES, deciding, identity, scientific
from coordexp.config.schema import KEYS, Ablation, ExperimentConfig
from coordexp.config.trees import leaves, within


def test_every_key_declares_a_role_and_describes_itself_with_a_sentence():
    assert all(found.name == name and found.description.endswith(".") for name, found in KEYS.items())
    assert {name for name, found in KEYS.items() if found.is_path} >= {
        "experiment.runs_dir",
        "data.path",
        *(f"data.{split}_{what}" for split in ("train", "val") for what in ("annotations", "images")),
    }


def test_every_key_of_a_configuration_is_selected_by_its_own_declaration():
    config = ExperimentConfig.model_validate({"custom": {"coord_offset": {"ids": {"start": 0, "end": 999}}}})
    every = set(leaves(config.model_dump(mode="json")))
    every |= {"evaluation.aliases", "evaluation.reading", "objective.extra", "ablation.groups"}
    of_tuning = {name for name in KEYS if name.startswith("ablation.tune.")}  # there is none without a plan
    assert len(of_tuning) > 5
    assert every == set(KEYS) - {"custom.coord_offset.ids"} - of_tuning
    roles = {name: KEYS[name].role for name in every - {"evaluation.aliases", "objective.extra", *LATER}}
    step = {STEP_IMAGES}
    assert set(leaves(scientific(config))) == step | {n for n, role in roles.items() if role in ("results", "rounding")}
    kept = step | {name for name, role in roles.items() if role in ("results", "input", "name", "record")}
    assert set(leaves(identity(config))) == kept


@pytest.mark.parametrize(
    ("sections", "goes_on"),
    [
        ({"tracking": {"max_artifact_mib": 1}, "cluster": {"executor": "inline", "max_failures": 5}}, True),
        ({"data": {"num_workers": 3, "image_cache_mib": 64}, "ablation": {"seeds": [1, 2]}}, True),
        ({"cluster": {"cpus_per_worker": 2}}, True),
        ({"experiment": {"runs_dir": "/elsewhere"}}, True),
        ({"model": {"path": "/copy"}}, False),
        ({"training": {"logging_steps": 7}}, False),
        ({"cluster": {"num_workers": 2}}, False),
        ({"cluster": {"num_workers": 2}, "training": {"per_device_batch_size": 4}}, True),
        ({"training": {"num_threads": 2, "deterministic": False}}, True),
        ({"cluster": {"strategy": "zero2"}}, False),
        ({"experiment": {"group": "B"}}, False),
    ],
)
def test_what_a_run_may_go_on_with(sections: dict[str, object], goes_on: bool):
    assert (identity(ExperimentConfig.model_validate(sections)) == identity(ExperimentConfig())) is goes_on


def test_parts_follow_from_the_keys_that_decide_them():
    plain = ExperimentConfig()
    other = {
        "seed": ExperimentConfig.model_validate({"experiment": {"seed": 1}}),
        "model": ExperimentConfig.model_validate({"model": {"path": "/other"}}),
        "prompt": ExperimentConfig.model_validate({"data": {"prompt": "Name them."}}),
        "loss": ExperimentConfig.model_validate({"objective": {"lambda_coord": 2.0}}),
        "rate": ExperimentConfig.model_validate({"training": {"learning_rate": 1.0}}),
    }

    def differing(text):
        return [name for name, config in other.items() if text(config) != text(plain)]

    assert differing(lambda config: deciding(config, "tokens")) == ["seed", "model", "prompt"]
    assert differing(lambda config: deciding(config, "data", "base")) == ["model"]


def test_the_default_factor_is_the_loss():
    assert {name for name in KEYS if within(name, Ablation().factor)} == {
        name for name, found in KEYS.items() if "loss" in found.decides
    }


def test_a_key_that_came_later_is_part_of_a_run_where_it_says_something_new():
    sections = {
        "data": {"boxes_in": "shown", "categories": {"merge": True}, "val_fraction": 0.3, "split_seed": 4},
        "evaluation": {"max_images": 3},
    }
    plain, other = ExperimentConfig(), ExperimentConfig.model_validate(sections)
    assert set(LATER).isdisjoint(leaves(identity(plain)))
    changed = {key for key, value in leaves(identity(other)).items() if leaves(identity(plain)).get(key) != value}
    assert changed == {*LATER} - {"data.path", "ablation.tune"}
    assert deciding(plain, "data", "tokens") != deciding(other, "data", "tokens")
