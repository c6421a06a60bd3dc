import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError
from coordexp.tracking.flatten import MAX_KEY_LENGTH, MAX_VALUE_LENGTH, check_params, flatten_config


def test_nested_mappings_become_dotted_keys_with_text_values() -> None:
    config = {"a": {"b": {"c": 1.5}, "on": True, "none": None, "path": "/x/y"}, "name": "text", "seeds": [0, 1]}
    assert flatten_config(config) == {
        "a.b.c": "1.5",
        "a.on": "true",
        "a.none": "null",
        "a.path": "/x/y",
        "name": "text",
        "seeds": "[0, 1]",
    }


def test_a_mapping_whose_keys_are_no_keys_of_mlflow_stays_whole() -> None:
    assert flatten_config({"aliases": {"TV (big)": "tv", "b": "c"}}) == {"aliases": '{"TV (big)": "tv", "b": "c"}'}
    assert flatten_config({"groups": {}}) == {"groups": "{}"}
    assert flatten_config({"a": {"x.y": 1}}) == {"a": '{"x.y": 1}'}  # a dot would make the key ambiguous
    long = "k" * MAX_KEY_LENGTH
    assert flatten_config({"a": {long: 1}}) == {"a": f'{{"{long}": 1}}'}


def test_long_values_stay_within_the_limit_and_stay_different() -> None:
    one, two = (flatten_config({"a": "x" * 10_000 + end})["a"] for end in ("1", "2"))
    assert len(one) == len(two) == MAX_VALUE_LENGTH
    assert one != two


def test_a_whole_configuration_is_flat_and_within_limits() -> None:
    flat = flatten_config(ExperimentConfig().model_dump(mode="json"))
    assert flat["objective.lambda_coord"] == "1.0"
    assert flat["training.lora.rank"] == "16"
    assert all(len(key) <= MAX_KEY_LENGTH and len(value) <= MAX_VALUE_LENGTH for key, value in flat.items())


def test_a_changed_parameter_is_named_with_both_values() -> None:
    check_params("A-s0", {"a": "1"}, {"a": "1", "b": "2"})  # interrupted before b was logged: fine
    with pytest.raises(ComparisonError, match=r"A-s0 was started with a = '1', now it is '2'"):
        check_params("A-s0", {"a": "1"}, {"a": "2"})
    with pytest.raises(ComparisonError, match=r"now it is absent"):
        check_params("A-s0", {"a": "1"}, {})
