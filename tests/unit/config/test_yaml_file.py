from pathlib import Path

import pytest

from coordexp.config.yaml_file import parse_value, read_mapping
from coordexp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),  # plain PyYAML reads these three as text
        ("1E5", 1e5),
        ("5.e-3", 5e-3),
        ("-2.5", -2.5),
        ("20", 20),
        ("1_000", 1000),
        ("true", True),
        ("null", None),
        ("yes", "yes"),  # YAML 1.1 would make these a bool, 10, 750 and a date
        ("010", 10.0),
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


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))


def _read(tmp_path: Path, text: str):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_mapping(path)


def test_every_key_knows_its_line(tmp_path: Path):
    document = _read(tmp_path, "# head\ntraining:\n  max_steps: 3\n  lora: {rank: 2}\n")
    assert document.tree == {"training": {"max_steps": 3, "lora": {"rank": 2}}}
    assert document.lines == {"training": 2, "training.max_steps": 3, "training.lora": 4, "training.lora.rank": 4}
    assert document.where("training.max_steps").endswith("config.yaml:3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  b: 1\n  b: 2\n", r"config\.yaml:3: key a\.b is given twice \(first on line 2\)"),
        ("a: [{b: 1, b: 2}]\n", r"config\.yaml:1: key a\[\]b is given twice|b is given twice"),
        ("1: x\n", r"config\.yaml:1: key '1' is not text"),
        ("[1]: x\n", r"config\.yaml:1: key a list is not text"),
        ("a: [1\n", r"config\.yaml:2: not valid YAML"),
        ("a:\n\tb: 1\n", r"config\.yaml:2: not valid YAML"),
        ("", r"config\.yaml: expected a YAML mapping of sections, got nothing"),
        ("- a\n", r"got a list"),
        ("text\n", r"got 'text'"),
        ("a: *missing\n", r"config\.yaml:1: not valid YAML"),
        ("a: &x [*x]\n", r"config\.yaml:1: .*recursive|not valid YAML"),
        ("a: !!python/object:os.system {}\n", r"config\.yaml:1: not valid YAML"),
        (
            "a: !!int x\n",
            r"config\.yaml: not valid YAML \(a value is too long, or not what its tag says\)",
        ),
        ("a: !!int ''\n", r"not valid YAML \(a value is too long, or not what"),
        ("a: !!float ''\n", r"not valid YAML \(a value is too long, or not what"),
        ("a: !!bool maybe\n", r"not valid YAML \(a value is too long, or not what"),
        ("a: !!timestamp x\n", r"config\.yaml:1: not valid YAML \(the tag .*timestamp is not used here\)"),
        ("a: !!timestamp 2026-11-23\n", r"the tag .*timestamp is not used here"),
        ("a: b\0c\n", r"config\.yaml: not valid YAML \(character '\\x00' at 4 is not allowed\)$"),
        ('a: "b\\0c"\n', r"config\.yaml:1: not valid YAML \(character '\\x00' is no text\)$"),
        ('a: "\\ud800"\n', r"config\.yaml:1: not valid YAML \(character '\\ud800' is no text\)$"),
        (f"a: {'[' * 51}{']' * 51}\n", r"config\.yaml: not valid YAML \(values lie more than 50 deep"),
        (f"a: {'[' * 100_000}\n", r"values lie more than 50 deep"),
        ("".join(f"{'- ' * n}\n" for n in range(200)), r"values lie more than 50 deep|not valid YAML"),
        (BOMB, r"config\.yaml: holds more than 100,000 values, each alias written out$"),
        (MERGE_BOMB, r"config\.yaml: holds more than 100,000 values"),
        (f"a: '{'x' * 2**20}'\n", r"config\.yaml: has more than 1,048,576 bytes, which no configuration needs$"),
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


def test_what_a_caller_makes_of_a_file_is_not_what_the_next_one_reads(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: {b: 1}\n")
    first = read_mapping(file)
    first.tree["a"]["b"] = 2
    assert read_mapping(file).tree == {"a": {"b": 1}}
    file.write_text("\na: {b: 3}\n")
    again = read_mapping(file)
    assert (again.tree, again.lines) == ({"a": {"b": 3}}, {"a": 2, "a.b": 2})
