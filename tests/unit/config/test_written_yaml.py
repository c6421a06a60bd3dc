"""A configuration that is written loads back as it was, whatever its texts look like."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coordexp.config import load_config, to_yaml
from coordexp.config.yaml_file import parse_foreign, parse_value, written_yaml
from coordexp.errors import DataError

# A name of an experiment is part of a path, and a revision is anything a Git server accepts.
NAME = st.from_regex(r"[0-9a-fA-F][0-9a-fA-F_.-]{0,11}", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
LOOKS_LIKE_A_NUMBER = ("1e3", "12e03", "5e81234", "1_000", "0o17", "0x1F", "1:30", "007", "1.", "+1", ".5", ".inf")
LOOKS_LIKE_A_VALUE = ("yes", "no", "null", "~", "true", "2026-11-28", "=", "<<", "a: b", "- a", "# a", "!a", "*a", "@a")
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT)
VALUES = st.recursive(SCALARS, lambda below: st.lists(below) | st.dictionaries(TEXT, below), max_leaves=12)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAME, revision=NAME, prompt=TEXT.filter(str.strip), rate=st.floats(1e-9, 1))
@example(name="1e3", revision="5e81234", prompt="yes", rate=1e-9)
@example(name="12e03", revision="0123456", prompt="Find\x85every\u2028object \U0001f431: #1", rate=1e-5)
def test_a_written_configuration_loads_back_equal(name: str, revision: str, prompt: str, rate: float) -> None:
    chosen = {"experiment.name": name, "model.path": "owner/model", "model.revision": revision, "data.prompt": prompt}
    Path("empty.yaml").write_text("model: {}\n")
    overrides = [f"{key}={written_yaml(value)}" for key, value in chosen.items()]
    config = load_config("empty.yaml", [*overrides, f"training.learning_rate={rate!r}"])
    assert (config.experiment.name, config.model.revision, config.data.prompt) == (name, revision, prompt)
    Path("written.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_config("written.yaml") == config


@pytest.mark.parametrize("flow", [True, False, None])
@pytest.mark.parametrize("text", [*LOOKS_LIKE_A_NUMBER, *LOOKS_LIKE_A_VALUE])
def test_a_text_stays_a_text(text: str, flow: bool | None) -> None:
    value = {text: [text, {"key": text}]}
    assert parse_value(written_yaml(value, flow=flow), name="value") == value
    assert parse_value(written_yaml(text, flow=flow), name="value") == text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, flow=st.sampled_from([True, False, None]))
def test_any_value_reads_back_equal(value: object, flow: bool | None) -> None:
    text = written_yaml(value, flow=flow)  # pyright: ignore[reportArgumentType]
    assert parse_value(text, name="value") == value
    assert flow is not True or text.count("\n") == 1


def test_a_file_of_another_tool_is_read_as_its_author_wrote_it() -> None:
    text = "names: [yes, no, on, 2026-11-28]\nnc: 3\nnc: 4\n"
    assert parse_foreign(text) == {"names": ["yes", "no", "on", "2026-11-28"], "nc": 4}
    for broken in ("names: [a\n", "a:\n\tb: 1\n", "a: !!int x\n"):
        with pytest.raises(DataError):
            parse_foreign(broken)
