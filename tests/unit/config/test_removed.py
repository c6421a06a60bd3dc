"""What was removed is said in one sentence where somebody still uses it."""

import re

import pytest

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.config.keys import known_keys
from coordexp.config.removed import COMMANDS, KEYS
from coordexp.errors import ConfigError


@pytest.mark.parametrize("entry", KEYS)
def test_a_removed_key_or_value_is_named_with_file_line_and_reason(entry, tmp_path):
    key, _, value = entry.partition(": ")
    assert bool(value) == (key in known_keys())
    section, name = key.split(".")
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: tiny.yaml\n{section}:\n  {name}: {value or 1}\n")
    for overrides, place in (((), f"{file}:3"), ((f"{key}={value or 1}",), "override")):
        with pytest.raises(ConfigError) as refused:
            load_config(file, overrides)
        headline = str(refused.value).splitlines()[0]
        assert headline.startswith(place)
        assert ("delete" in headline) != bool(value)
        assert entry in headline
        assert KEYS[entry] in headline


def test_a_removed_key_of_a_group_or_a_factor_is_one_too():
    for override in ("ablation.groups.A.data.packing=true", "ablation.factor=[data.packing]"):
        with pytest.raises(ConfigError, match=rf"data\.packing\b.*{re.escape(KEYS['data.packing'])}"):
            load_config("experiments/tiny.yaml", [override])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_removed_command_says_what_to_do_instead(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), "some", "--other=1"])
    message = capsys.readouterr().err
    assert f"coordexp {command} " in message
    assert COMMANDS[command] in message
