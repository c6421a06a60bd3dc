"""What a budget counts, and which seeds it holds."""

import time

import pytest

from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.runs import budget
from coordexp.runs.budget import BudgetKeeper, RunUse, hours_of, seeds_held, unit_name, units_of, whole_seeds
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import RunStatus, write_status
from coordexp.runs.stop import stop_reason

B = {"objective": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True}}


def make_plans(tmp_path, seeds=(0, 1, 2), **cluster: object) -> list[RunPlan]:
    tree: dict[str, object] = {
        "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
        "cluster": cluster,
        "ablation": {"groups": {"A": {}, "B": B}, "seeds": list(seeds)},
    }
    return plan_runs(ExperimentConfig.model_validate(tree))


@pytest.mark.parametrize(
    ("cluster", "units", "name"),
    [
        ({"num_workers": 8, "cpus_per_worker": 16, "gpus_per_worker": 1.0}, 8.0, "GPU"),
        ({"num_workers": 2, "gpus_per_worker": 4.0}, 8.0, "GPU"),
        ({"gpus_per_worker": 0.25}, 0.25, "GPU"),
        ({"num_workers": 3, "cpus_per_worker": 2}, 6.0, "CPU"),
    ],
)
def test_an_hour_is_one_of_what_the_run_holds(cluster, units, name):
    asked = Cluster.model_validate(cluster)
    assert (units_of(asked), unit_name(asked)) == (units, name)


@pytest.mark.parametrize(
    ("status", "hours"),
    [
        (RunStatus("waiting"), 0.0),
        (RunStatus("finished", seconds=1800.0), 1.0),
        (RunStatus("failed", seconds=3600.0), 2.0),
        # an hour of attempts before, and half an hour of this one
        (RunStatus("running", seconds=3600.0, since=8200.0), 3.0),
        # waits for its workers: uses nothing
        (RunStatus("running", seconds=3600.0), 2.0),
    ],
)
def test_a_run_uses_the_time_it_has_had_its_workers(status, hours):
    cluster = Cluster(num_workers=2, gpus_per_worker=1.0)
    assert hours_of(status, cluster, now=10_000.0) == pytest.approx(hours)


def held(rows: list[tuple[int, float, str]], max_hours: float) -> set[int]:
    return seeds_held(uses(*rows), max_hours - sum(hours for _, hours, _ in rows))


def uses(*rows: tuple[int, float, str]) -> list[RunUse]:
    return [RunUse(seed, hours, how) for seed, hours, how in rows]


@pytest.mark.parametrize(
    ("rows", "max_hours", "seeds"),
    [
        # Nothing is measured yet: nothing is held back.
        ([(0, 0.0, "missing"), (0, 0.0, "missing"), (1, 0.0, "missing")], 1.0, {0, 1}),
        # 2 of 4.1 hours are used by seed 0; seed 1 needs 2.
        ([(0, 1.0, "finished"), (0, 1.0, "finished"), (1, 0.0, "missing"), (1, 0.0, "missing")], 4.1, {1}),
        # It is the oldest that is not whole: it goes on while anything is left.
        ([(0, 1.0, "finished"), (0, 0.5, "missing"), (1, 0.0, "missing")], 1.6, {0}),
        # A half-finished seed needs only what it lacks: .5 + 2 of 3.
        ([(0, 1.0, "finished"), (0, 0.5, "missing"), (1, 0.0, "missing"), (1, 0.0, "missing")], 4.5, {0, 1}),
        ([(0, 1.0, "finished"), (0, 0.5, "missing"), (1, 0.0, "missing"), (1, 0.0, "missing")], 3.9, {0}),
        # A run that failed for good needs nothing more.
        ([(0, 1.0, "finished"), (0, 0.5, "failed"), (1, 0.0, "missing"), (1, 0.0, "missing")], 3.6, {1}),
        # Spent.
        ([(0, 1.0, "finished"), (0, 1.0, "missing")], 2.0, set()),
        ([(0, 1.0, "finished"), (0, 1.5, "missing")], 2.0, set()),
        # Slower than the mean: nothing is known of what it lacks, so it takes nothing from others.
        ([(0, 1.0, "finished"), (0, 1.5, "missing"), (1, 0.0, "missing"), (1, 0.0, "missing")], 5.0, {0, 1}),
    ],
)
def test_further_seeds_begin_only_whole(rows, max_hours, seeds):
    assert held(rows, max_hours) == seeds


def test_a_further_seed_needs_room_for_all_its_runs():
    done = [(0, 1.0, "finished"), (0, 1.0, "finished"), (0, 1.0, "finished")]
    more = [(1, 0.0, "missing")] * 3 + [(2, 0.0, "missing")] * 3
    assert held(done + more, 5.9) == set()
    assert held(done + more, 6.0) == {1}
    begun = [(1, 1.0, "finished"), (1, 0.0, "missing"), (1, 0.0, "missing")]
    assert held(done + begun + more[3:], 8.9) == {1}
    assert held(done + begun + more[3:], 9.0) == {1, 2}


def finish(plans, *, hours=1.0):
    for plan in plans:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0 * hours))


def admitted(keeper: BudgetKeeper, plans: list[RunPlan]) -> list[str]:
    return [plan.name for plan in keeper.admitted(plans)]


def test_a_keeper_admits_the_runs_of_seeds_it_holds_and_tells_the_others_why_not(tmp_path):
    plans = make_plans(tmp_path)
    finish(plans[:3])
    with BudgetKeeper(plans, 5.0) as keeper:
        assert admitted(keeper, plans[3:]) == ["B-s1"]
        reasons = [stop_reason(plan.run_dir) for plan in plans]
        assert reasons[:4] == [None] * 4
        assert reasons[4:] == ["what is left of the budget of 5 CPU hours does not hold another whole seed"] * 2
        assert keeper.has_stopped()
        assert keeper.sentence().startswith("budget: 3 of 5 CPU hours are used, and 3 of 6 runs are not finished")
        write_status(plans[3].run_dir, RunStatus("running", seconds=7200.0))
        keeper.review([plans[3]])
        assert stop_reason(plans[3].run_dir) == "the budget of 5 CPU hours is spent"
    assert whole_seeds(plans) == [0]


def test_a_seed_of_which_a_run_was_refused_stays_closed(tmp_path):
    """What the rest of the seed would need fits later, but the seed would not become whole."""
    plans = make_plans(tmp_path)
    finish(plans[:2])
    with BudgetKeeper(plans, 3.5) as keeper:
        assert admitted(keeper, plans[2:3]) == []
        finish(plans[:2], hours=0.1)
        assert admitted(keeper, plans[3:]) == []


def test_a_run_is_judged_by_what_is_known_when_it_would_begin(tmp_path):
    plans = make_plans(tmp_path)
    finish(plans[:2])
    with BudgetKeeper(plans, 5.5) as keeper:
        for plan in keeper.admitted(plans[2:]):
            finish([plan], hours=0.5)  # half as long as the first seed's
            keeper.on_end(plan)
        assert not keeper.has_stopped()
    assert whole_seeds(plans) == [0, 1, 2]


def test_a_running_run_is_stopped_when_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_LOOK_SECONDS", 0.05)
    plans = make_plans(tmp_path)
    with BudgetKeeper(plans, 1.0) as keeper:
        plan = next(keeper.admitted(plans))
        write_status(plan.run_dir, RunStatus("running", seconds=3600.0))
        until = time.monotonic() + 30
        while stop_reason(plan.run_dir) is None and time.monotonic() < until:
            time.sleep(0.02)
    assert stop_reason(plan.run_dir) == "the budget of 1 CPU hours is spent"


def test_hours_of_others_are_taken_from_the_budget(tmp_path):
    plans = make_plans(tmp_path)
    finish(plans[:2])
    with BudgetKeeper(plans, 7.0, spent_hours=3.0) as keeper:
        assert admitted(keeper, plans[2:]) == ["A-s1", "B-s1"]  # 2 of 4 hours are left
        assert keeper.sentence().startswith("budget: 5 of 7 CPU hours are used")
    with BudgetKeeper(plans, 4.0, spent_hours=3.0) as keeper:
        assert admitted(keeper, plans[2:3]) == []
