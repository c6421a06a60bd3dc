import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError, TrackingError
from coordexp.runs.reporter import Row
from coordexp.tracking.payload import (
    MAX_KEY_LENGTH,
    MAX_POINTS,
    MAX_VALUE_LENGTH,
    batches,
    check_params,
    flatten_config,
)


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


BEST_LOSS = "training/best_eval_total_loss"


def row(step: int, **metrics: float) -> Row:
    return Row(step=step, time=1000.0 + step, metrics=metrics)


def test_points_carry_the_time_of_their_row() -> None:
    (batch,) = batches([row(10, train_total_loss=2.0)], {})
    (point,) = batch.points
    assert (point.name, point.value, point.timestamp_ms, point.step) == ("train_total_loss", 2.0, 1_010_000, 10)
    assert (batch.rows_done, batch.last_step) == (1, 10)


def test_batches_keep_the_limit_and_count_whole_rows_only() -> None:
    rows = [Row(step=step, time=1.0, metrics={f"coord_diag/m{i}": 0.0 for i in range(400)}) for step in range(5)]
    found = list(batches(rows, {}))
    assert [len(batch.points) for batch in found] == [800, 800, 400]
    assert [batch.rows_done for batch in found] == [2, 4, 5]
    assert [batch.last_step for batch in found] == [1, 3, 4]


def test_a_row_larger_than_a_batch_is_counted_with_its_last_piece() -> None:
    found = list(
        batches([Row(step=7, time=1.0, metrics={f"coord_diag/m{i}": 0.0 for i in range(2 * MAX_POINTS + 1)})], {})
    )
    assert [len(batch.points) for batch in found] == [MAX_POINTS, MAX_POINTS, 1]
    assert [batch.rows_done for batch in found] == [0, 0, 1]


def test_a_row_without_values_is_counted() -> None:
    (batch,) = batches([row(1)], {})
    assert (batch.points, batch.rows_done) == ((), 1)
    assert list(batches([], {})) == []


def test_best_values_follow_the_direction_of_the_metric() -> None:
    (batch,) = batches([row(step, eval_total_loss=value) for step, value in ((1, 3.0), (2, 2.0), (3, 2.5))], {})
    assert [(p.step, p.value) for p in batch.points if p.name == BEST_LOSS] == [(1, 3.0), (2, 2.0)]
    (batch,) = batches([row(4, eval_total_loss=1.9)], {BEST_LOSS: 1.0})
    assert [p.name for p in batch.points] == ["eval_total_loss"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(TrackingError, match="train_total_loss at step 3"):
        list(batches([row(3, train_total_loss=value)], {}))
