import pytest

from coordexp.errors import ComparisonError, TrackingError
from coordexp.runs.reporter import Row
from coordexp.tracking.payload import MAX_VALUE_LENGTH, check_same, flatten_config, last_values, row_points


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


def test_long_values_stay_within_the_limit_and_stay_different() -> None:
    one, two = (flatten_config({"a": "x" * 10_000 + end})["a"] for end in ("1", "2"))
    assert len(one) == len(two) == MAX_VALUE_LENGTH
    assert one != two


def test_the_last_value_of_a_metric_counts() -> None:
    rows = [Row(step, 1000.0, {"eval_total_loss": value}) for step, value in ((1, 3.0), (2, 2.0), (3, 2.5))]
    assert last_values(rows) == {"eval_total_loss": 2.5}


def test_points_carry_the_time_of_their_row_and_are_finite() -> None:
    assert row_points(Row(10, 1010.0, {"train_total_loss": 2.0})) == [("train_total_loss", 2.0, 1_010_000, 10)]
    with pytest.raises(TrackingError, match="train_total_loss at step 3"):
        row_points(Row(3, 1.0, {"train_total_loss": float("nan")}))


def test_a_changed_parameter_is_named_with_both_values() -> None:
    check_same("A-s0", {"a": "1"}, {"a": "1", "b": "2"})  # interrupted before b was logged: fine
    with pytest.raises(ComparisonError, match=r"A-s0 .*a = '1'.* '2'"):
        check_same("A-s0", {"a": "1"}, {"a": "2"})
    with pytest.raises(ComparisonError, match=r"A-s0 .*a = '1'.*absent"):
        check_same("A-s0", {"a": "1"}, {})
