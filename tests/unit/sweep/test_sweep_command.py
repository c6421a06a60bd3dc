"""``coordexp sweep``: what a dry run prints, and how errors come out; nothing is written."""

from coordexp.cli.main import main as coordexp


def main(argv):
    return coordexp(["sweep", *argv])


def test_a_dry_run_prints_trials_and_rungs_and_writes_nothing(tmp_path, capsys):
    code = main(["--dry-run", "sweep.space.objective.lambda_coord.num=3", f"experiment.runs_dir={tmp_path}/runs"])
    text = capsys.readouterr().out
    assert code == 0
    assert "trials          3 (grid), 360 steps each; 0 proposed so far" in text
    assert "stops early     by AP at steps 90, 270" in text
    assert "winners         2 points again, 6 further runs" in text
    assert not (tmp_path / "runs").exists()
