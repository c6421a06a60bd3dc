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
    ("text", "message"),
    [
        ("a:\n  b: 1\n  b: 2\n", r"config\.yaml:3: .*duplicate key"),
        ("a: [{b: 1, b: 2}]\n", r"config\.yaml:1: .*duplicate key"),
        ("1: x\n", r"config\.yaml:1: key 1 is not text"),
        ("a: [1\n", r"config\.yaml:2: not valid YAML"),
        ("a:\n\tb: 1\n", r"config\.yaml:2: not valid YAML"),
        ("", r"config\.yaml: expected a YAML mapping of sections, got nothing"),
        ("- a\n", r"got a list"),
        ("a: !mine 3\n", r"config\.yaml:1: not valid YAML"),
        ("a: !!int x\n", r"not what its tag says"),
        ('a: "b\\0c"\n', r"config\.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"not valid YAML"),
    ],
)
def test_bad_text_names_the_line(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        _read(tmp_path, text)


def test_unreadable_files(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot read the configuration file \(No such file"):
        read_mapping(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_mapping(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 3\)"):
        read_mapping(tmp_path / "latin.yaml")


def test_a_value_given_twice_is_not_shown(tmp_path: Path):
    with pytest.raises(ConfigError, match="duplicate key") as refused:
        _read(tmp_path, "tracking:\n  uri: http://me:hunter2@a\n  uri: http://me:hunter2@b\n")
    assert "hunter2" not in str(refused.value)


def test_what_is_merged_in_has_the_line_of_its_mapping(tmp_path: Path):
    document = _read(tmp_path, "x: &x {p: 1, q: 2}\ny:\n  <<: *x\n  q: 3\n")
    assert document.tree["y"] == {"q": 3, "p": 1}
    assert document.where("y.q").endswith(":4")


def test_what_a_caller_makes_of_a_file_is_not_what_the_next_one_reads(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: {b: 1}\n")
    read_mapping(file).tree["a"]["b"] = 2
    assert read_mapping(file).tree == {"a": {"b": 1}}
    file.write_text("\na: {b: 3}\n")
    assert read_mapping(file).where("a.b").endswith(":2")
