"""Configuration -> weighted terms: what a run needs of them."""

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError
from coordexp.train.setup.weighted_terms import weighted_terms


def config_of(extra, **objective):
    return ExperimentConfig.model_validate({"objective": {"use_coord_ce": False, "extra": extra, **objective}})


def test_a_term_that_sees_text_only_is_no_supervision():
    config = config_of({"text_gate": 1.0})
    with pytest.raises(ConfigError, match=r"objective\.use_coord_ce is false.*objective\.extra\.text_gate"):
        weighted_terms(config)
    with pytest.raises(ConfigError, match=r"objective\.extra\.smooth_l1 is 0.*text_gate"):
        weighted_terms(config_of({"text_gate": 1.0, "smooth_l1": 0.0}))


@pytest.mark.parametrize("name", ["smooth_l1", "coord_slice_ce"])
def test_a_further_term_that_sees_coordinates_is_enough(name):
    on = [weighted.term.name for weighted in weighted_terms(config_of({name: 0.5})) if weighted.weight > 0]
    assert on == ["text_ce", name]
