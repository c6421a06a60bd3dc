"""Numbers that no evaluation can have end before anything starts, in a sentence."""

import pytest

from ray_jobs.evaluate import main

GIVEN = ["--model", "embedded", "--annotations", "none.json", "--images", "none"]


@pytest.mark.parametrize("argument", ["--num-workers=0", "--cpus-per-worker=-1", "--gpus-per-worker=nan"])
def test_workers_that_cannot_be_are_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*GIVEN, argument])
    assert "expected --num-workers and --cpus-per-worker of at least 1" in capsys.readouterr().err


def test_text_in_place_of_a_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*GIVEN, "--batch-size=x"])
    assert "error: argument --batch-size: expected a whole number, got 'x'" in capsys.readouterr().err
