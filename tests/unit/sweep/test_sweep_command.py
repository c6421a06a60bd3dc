"""``coordexp sweep``: what a dry run prints, and how errors come out; nothing is written."""

from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from coordexp.search.point import point_text
from coordexp.sweep.load import load_sweep
from coordexp.sweep.trials import SweepTrials, known_points

SWEEPS = Path(__file__).parents[3] / "experiments" / "sweeps"


def main(argv):
    return coordexp(["sweep", *argv])


def test_a_dry_run_prints_trials_and_rungs_and_writes_nothing(tmp_path, capsys):
    code = main(["--dry-run", "sweep.space.objective.lambda_coord.num=3", f"experiment.runs_dir={tmp_path}/runs"])
    text = capsys.readouterr().out
    assert code == 0
    shown = {line[:16].strip(): line[16:] for line in text.splitlines()}
    for name, facts in {
        "trials": ("3 (grid)", "360 steps", "0 proposed"),
        "stops early": ("90, 270",),
        "winners": ("2 points", "6 further runs"),
    }.items():
        for fact in facts:
            assert fact in shown[name]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_a_dry_run_lists_the_points_that_the_sweep_will_take(tmp_path, capsys, method):
    config = SWEEPS / ("lambda_coord.yaml" if method == "grid" else "alpha_beta.yaml")
    search = [] if method == "grid" else [f"sweep.search.method={method}", "sweep.search.num_trials=12"]
    overrides = [f"experiment.runs_dir={tmp_path}/runs", *search]
    assert main(["--dry-run", "--config", str(config), *overrides]) == 0
    printed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  t0")]
    sweep = load_sweep(config, overrides)
    assert not (tmp_path / "runs").exists(), "a dry run writes nothing"
    (tmp_path / "runs" / sweep.settings.name).mkdir(parents=True)
    trials = SweepTrials(sweep, data={}, instance="one")
    num_known = {"grid": sweep.settings.num_points, "random": 12, "optuna": 3}[method]
    taken = [trials.propose() for _ in range(num_known)]
    assert printed == [[trial.name, point_text(trial.point)] for trial in taken]
    assert known_points(sweep)[:num_known] == [trial.point for trial in taken], "also once they are proposed"
