import pytest

from coordexp.metrics import (
    GAUGES,
    LOSS_NAMES,
    MetricName,
    Split,
    find_metric,
    gauge_of,
    headline,
    loss_head,
    loss_metric,
    loss_names,
    subset_headline,
)

PROMISED = [
    "train_total_loss",
    "eval_coord_ce_loss",
    "coord_diag/w1",
    "eval_coord_diag/inverted_fraction",
    "constrained/argmax/AP_small",
    "free/expected/AR100",
    "subset/constrained/expected/AP",
    "free/malformed",
    "free/malformed/too_few_coords",
    "subset/free/malformed/unclosed",
    "throughput/mfu",
    "grad_norm",
    "grad_norm/box_giou",
    "train_extra/my_term",
    "codec_ceiling/AP",
]


@pytest.mark.parametrize("name", PROMISED)
def test_the_promised_names_are_declared(name: str) -> None:
    assert find_metric(name) is not None


def test_names_of_an_evaluation_are_built_and_parsed() -> None:
    assert str(MetricName("constrained", "AP", "expected")) == headline("expected") == "constrained/expected/AP"
    assert headline("argmax") == "constrained/argmax/AP"
    assert str(MetricName("free", "malformed/unclosed")) == "free/malformed/unclosed"
    assert subset_headline("expected") == "subset/constrained/expected/AP"
    assert MetricName.parse("subset/free/argmax/AP50") == MetricName("free", "AP50", "argmax", subset=True)
    assert MetricName.parse("free/num_objects") == MetricName("free", "num_objects")
    assert [MetricName.parse(name) for name in ("train_total_loss", "codec_ceiling/AP", "final/steps")] == [None] * 3


@pytest.mark.parametrize(
    ("name", "gauge", "labels"),
    [
        ("train_coord_ce_loss", "coordexp_loss", {"phase": "train", "term": "coord_ce"}),
        ("eval_extra/iou", "coordexp_loss", {"phase": "eval", "term": "iou"}),
        ("eval_coord_diag/w1", "coordexp_coord_diag", {"phase": "eval", "name": "w1"}),
        ("throughput/mfu", "coordexp_mfu", {}),
        (
            "subset/free/argmax/F1_50",
            "coordexp_detection",
            {"images": "subset", "decoding": "free", "boxes": "argmax", "metric": "F1_50"},
        ),
    ],
)
def test_what_is_shown_live_names_its_gauge(name: str, gauge: str, labels: dict[str, str]) -> None:
    assert gauge_of(name) == (gauge, labels)
    assert {known.name: known.labels for known in GAUGES}[gauge] == tuple(labels)


@pytest.mark.parametrize(
    ("split", "name", "logged"),
    [
        ("train", "text_loss", "train_text_loss"),
        ("eval", "extra/iou", "eval_extra/iou"),
        ("train", "coord_diag/w1", "coord_diag/w1"),
        ("eval", "coord_diag/w1", "eval_coord_diag/w1"),
    ],
)
def test_a_loss_is_logged_by_split(split: Split, name: str, logged: str) -> None:
    assert loss_metric(split, name) == logged
    assert find_metric(logged) is not None


def test_further_terms_follow_the_losses_that_every_run_logs() -> None:
    logged = ["eval_extra/b", "train_extra/c", "train_text_loss", "train_extra/a", "train_extra/c"]
    assert loss_names(logged) == (*LOSS_NAMES, "extra/a", "extra/c")
    assert [loss_head(name) for name in loss_names(logged)] == ["total", "text", "coord", "coord ce", "a", "c"]
