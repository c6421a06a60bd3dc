"""What a budget counts, and which seeds it holds."""

import pytest

from coordexp.config.schema import Cluster, ExperimentConfig
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
        (None, 0.0),
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
    return [RunUse(seed, hours, is_finished=how == "done", is_over=how == "over") for seed, hours, how in rows]


@pytest.mark.parametrize(
    ("rows", "max_hours", "seeds"),
    [
        # Nothing is measured yet: nothing is held back.
        ([(0, 0.0, ""), (0, 0.0, ""), (1, 0.0, "")], 1.0, {0, 1}),
        # 2 of 4.1 hours are used by seed 0; seed 1 needs 2.
        ([(0, 1.0, "done"), (0, 1.0, "done"), (1, 0.0, ""), (1, 0.0, "")], 4.1, {1}),
        # It is the oldest that is not whole: it goes on while anything is left.
        ([(0, 1.0, "done"), (0, 0.5, ""), (1, 0.0, "")], 1.6, {0}),
        # A half-finished seed needs only what it lacks: .5 + 2 of 3.
        ([(0, 1.0, "done"), (0, 0.5, ""), (1, 0.0, ""), (1, 0.0, "")], 4.5, {0, 1}),
        ([(0, 1.0, "done"), (0, 0.5, ""), (1, 0.0, ""), (1, 0.0, "")], 3.9, {0}),
        # A run that failed for good needs nothing more.
        ([(0, 1.0, "done"), (0, 0.5, "over"), (1, 0.0, ""), (1, 0.0, "")], 3.6, {1}),
        # Spent.
        ([(0, 1.0, "done"), (0, 1.0, "")], 2.0, set()),
        ([(0, 1.0, "done"), (0, 1.5, "")], 2.0, set()),
        # Slower than the mean: nothing is known of what it lacks, so it takes nothing from others.
        ([(0, 1.0, "done"), (0, 1.5, ""), (1, 0.0, ""), (1, 0.0, "")], 5.0, {0, 1}),
    ],
)
def test_further_seeds_begin_only_whole(rows, max_hours, seeds):
    assert held(rows, max_hours) == seeds


def test_a_further_seed_needs_room_for_all_its_runs():
    done = [(0, 1.0, "done"), (0, 1.0, "done"), (0, 1.0, "done")]
    more = [(1, 0.0, "")] * 3 + [(2, 0.0, "")] * 3
    assert held(done + more, 5.9) == set()
    assert held(done + more, 6.0) == {1}
    begun = [(1, 1.0, "done"), (1, 0.0, ""), (1, 0.0, "")]
    assert held(done + begun + more[3:], 8.9) == {1}
    assert held(done + begun + more[3:], 9.0) == {1, 2}


def test_a_keeper_asks_the_runs_of_seeds_it_does_not_hold(tmp_path):
    plans = make_plans(tmp_path)
    for plan in plans[:2]:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0))
    write_status(plans[2].run_dir, RunStatus("finished", seconds=3600.0))
    with BudgetKeeper(plans, 5.0) as keeper:
        asked = {plan.name: stop_reason(plan.run_dir) for plan in plans}
        assert {name for name, reason in asked.items() if reason} == {"A-s2", "B-s2"}
        assert asked["A-s2"] == "what is left of the budget of 5 CPU hours does not hold another whole seed"
        assert keeper.has_stopped()
        assert keeper.sentence().startswith("budget: 3 of 5 CPU hours are used, and 3 of 6 runs are not finished")
        write_status(plans[3].run_dir, RunStatus("running", seconds=7200.0))
        keeper.review()
        assert stop_reason(plans[3].run_dir) == "the budget of 5 CPU hours is spent"
    assert whole_seeds(plans) == [0]


def test_a_seed_of_which_a_run_was_passed_over_stays_closed(tmp_path):
    """What the rest of the seed would need fits, but the seed would not become whole."""
    plans = make_plans(tmp_path)
    for plan in plans[:2]:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0))
    write_status(plans[2].run_dir, RunStatus("running", seconds=1800.0))
    with BudgetKeeper(plans, 5.5) as keeper:
        for plan in plans[2:5]:
            keeper.on_begin(plan)
        assert stop_reason(plans[4].run_dir) is not None
        keeper.on_end(plans[4])  # its driver found the request and returned
        assert stop_reason(plans[5].run_dir) is not None


def test_a_seed_that_others_make_room_for_begins_after_all(tmp_path):
    plans = make_plans(tmp_path)
    for plan in plans[:2]:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0))
    with BudgetKeeper(plans, 5.5) as keeper:
        assert stop_reason(plans[4].run_dir) is not None
        for plan in plans[2:4]:  # half as long
            write_status(plan.run_dir, RunStatus("finished", seconds=1800.0))
            keeper.on_end(plan)
        assert [stop_reason(plan.run_dir) for plan in plans[4:]] == [None, None]
        assert not keeper.has_stopped()


def test_hours_of_others_are_taken_from_the_budget(tmp_path):
    plans = make_plans(tmp_path)
    for plan in plans[:2]:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0))
    with BudgetKeeper(plans, 7.0, spent_hours=3.0) as keeper:
        asked = {plan.name for plan in plans if stop_reason(plan.run_dir)}
        assert asked == {"A-s2", "B-s2"}  # 2 of 4 hours are left
        assert keeper.sentence().startswith("budget: 5 of 7 CPU hours are used")
    with BudgetKeeper(plans, 4.0, spent_hours=3.0) as keeper:
        assert stop_reason(plans[2].run_dir) == "the budget of 4 CPU hours is spent"
