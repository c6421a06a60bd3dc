"""``coordexp sweep``: what a dry run prints, and how errors come out; nothing is written."""

from coordexp.cli.main import main as coordexp


def main(argv):
    return coordexp(["sweep", *argv])


def test_a_dry_run_prints_points_and_rungs_and_writes_nothing(tmp_path, capsys):
    code = main(["--dry-run", "sweep.space.objective.lambda_coord.num=3", f"experiment.runs_dir={tmp_path}/runs"])
    text = capsys.readouterr().out
    assert code == 0
    assert "trials          3 (grid), 360 steps each" in text
    assert "stops early     by AP at steps 90, 270" in text
    assert "winners         2 points again, 6 further runs" in text
    assert text.splitlines()[-3:] == [
        f"t{index:03d}            objective.lambda_coord = {value}" for index, value in enumerate(["0.1", "1", "10"])
    ]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_knows_random_points_and_cannot_know_optunas(tmp_path, capsys):
    common = ["--config", "alpha_beta", "--dry-run"]
    common.append(f"experiment.runs_dir={tmp_path}/runs")
    assert main([*common, "sweep.search.method=random", "sweep.search.num_trials=2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("t001            objective.alpha_l1 = ")
    assert main(common) == 0
    assert "proposed from the results of those before" in capsys.readouterr().out
