from pathlib import Path

import pytest

from coordexp.config.yaml_file import parse_value, read_mapping
from coordexp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),  # YAML 1.1 reads these three as text
        ("1E5", 1e5),
        ("5.e-3", 5e-3),
        ("true", True),
        ("null", None),
        ("yes", "yes"),  # YAML 1.1 would make these a bool, 10, 750 and a date
        ("010", 10),
        ("12:30", "12:30"),
        ("2026-11-20", "2026-11-20"),
        ("[0, 1]", [0, 1]),
        ("{a: 1.0e-3}", {"a": 1e-3}),
    ],
)
def test_scalars(text: str, value: object):
    parsed = parse_value(text, name="override")
    assert parsed == value
    assert type(parsed) is type(value)


def _read(tmp_path: Path, text: str):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_mapping(path)


def test_every_key_knows_its_line(tmp_path: Path):
    document = _read(tmp_path, "# head\ntraining:\n  max_steps: 3\n  lora: {rank: 2}\n")
    assert document.tree == {"training": {"max_steps": 3, "lora": {"rank": 2}}}
    lines = {key: int(place.rpartition(":")[2]) for key, place in document.places.items()}
    assert lines == {"training": 2, "training.max_steps": 3, "training.lora": 4, "training.lora.rank": 4}
    assert document.where("training.max_steps").endswith("config.yaml:3")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a:\n  b: 1\n  b: 2\n", r"config\.yaml:3: .*duplicate"),
        ("a: [1\n", r"config\.yaml:2: "),
        ("a:\n\tb: 1\n", r"config\.yaml:2: "),
        ("", r"config\.yaml: .*empty"),
        ("- a\n", r"config\.yaml: .*\blist\b"),
    ],
)
def test_bad_text_names_the_line(tmp_path: Path, text: str, facts: str):
    with pytest.raises(ConfigError, match=facts):
        _read(tmp_path, text)
