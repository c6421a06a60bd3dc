"""Numbers that no evaluation can have end before anything starts, in a sentence."""

import pytest

from coordexp.cli.main import main

GIVEN = ["evaluate", "--model", "embedded", "--annotations", "none.json", "--images", "none"]


@pytest.mark.parametrize("argument", ["--num-workers=0", "--cpus-per-worker=-1", "--gpus-per-worker=nan"])
def test_workers_that_cannot_be_are_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*GIVEN, argument])
    assert f"error: argument {argument.partition('=')[0]}: expected" in capsys.readouterr().err


def test_what_workers_get_means_nothing_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--gpus-per-worker=1"]) == 2
    assert "no effect without --num-workers" in capsys.readouterr().err


def test_text_in_place_of_a_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*GIVEN, "--batch-size=x"])
    assert "error: argument --batch-size: expected a whole number, got 'x'" in capsys.readouterr().err
