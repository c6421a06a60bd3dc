"""A live run on a real Ray, a real Prometheus with our configuration, and every query of every panel and alert."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
import ray
import yaml

from coordexp.cluster.executor import RayExecutor
from coordexp.cluster.gauges import QueueGauges
from coordexp.cluster.session import ray_session
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DivergedError
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import Row
from tests.support.private_ray import private_ray_environment
from tests.support.prometheus import DASHBOARDS, alert_inputs, panel_queries, prometheus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"),
]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 36


@pytest.fixture
def ray_temporary():
    with private_ray_environment() as (temporary, patch):
        patch.setenv("RAY_metrics_report_interval_ms", "2000")
        with ray_session(threads=1) as ready:
            ready.result()
            yield Path(temporary)


def stand_in(config, *, reporter, print_line):
    """A row a second with what a trainer reports; group B ends with a loss that is not finite."""
    losses = ("total_loss", "text_loss", "coord_loss", "coord_ce_loss")
    for step in range(1, STEPS + 1):
        names = [f"{phase}_{name}" for phase in ("train", "eval") for name in losses]
        names += [f"coord_diag/{name}" for name in ("expected_bin_mae", "coord_vocab_mass", "loss", "w1")]
        names += [f"throughput/{name}" for name in ("images_per_second", "tokens_per_second", "mfu")]
        names += ["throughput/data_wait_fraction", "grad_norm", "learning_rate", "alarms", "num_images"]
        boxes = [f"constrained/{kind}/AP" for kind in ("argmax", "expected")]
        finals = [*boxes, "constrained/expected/F1_50"]
        names += [f"subset/{name}" for name in boxes] + (finals if step > STEPS // 2 else [])
        row = Row(step=step, time=time.time(), metrics=dict.fromkeys(names, 0.5 + step / 100))
        reporter.observe(row)
        if step % 4 == 0:
            reporter.commit([row], step=step, checkpoint=None)
        time.sleep(1)
    if config.experiment.group == "B":
        raise DivergedError(f"step {STEPS + 1}: the loss is nan")


def make_plans(tmp_path: Path) -> list[RunPlan]:
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "live", "runs_dir": str(tmp_path)},
            "training": {"max_steps": STEPS},
            "cluster": {"max_failures": 0},
            "ablation": {"groups": {"A": {}, "B": {}}},
        }
    )
    return plan_runs(config)


def test_every_query_of_every_panel_and_alert_has_data(ray_temporary, tmp_path):
    dashboard = json.loads((DASHBOARDS / "grafana" / "dashboards" / "coordexp.json").read_text())
    rules = yaml.safe_load((DASHBOARDS / "prometheus" / "alerts.yml").read_text())
    discovery = ray_temporary / "ray" / "prom_metrics_service_discovery.json"
    plans = make_plans(tmp_path)
    with prometheus(tmp_path, discovery=discovery) as server:
        start = time.time()
        with QueueGauges("live", lambda: plans, every_seconds=1.0):
            RayExecutor().execute(plans, stand_in)
        assert [plan.status().state for plan in plans] == ["finished", "failed"]
        # The end-to-end proof of one alert: the queue's last word reaches it.
        server.wait_for('ALERTS{alertname="CoordexpNonFiniteLoss", run="B-s0", alertstate="firing"}', seconds=60)
        # A worker that is gone leaves no value behind, and the state says why.
        server.wait_for('absent(ray_coordexp_step{run="A-s0"})', seconds=60)
        server.wait_for('ray_coordexp_run_state{run="A-s0"} == 2', seconds=10)
        during = {"start": start, "end": time.time()}

        queries = panel_queries(dashboard)
        assert len(queries) > 60
        assert [query for query in queries if not server.has_data(query[1], **during)] == []
        inputs = alert_inputs(rules)
        assert {name for name, _ in inputs} == {
            rule.get("alert") or rule["record"] for group in rules["groups"] for rule in group["rules"]
        }
        assert [pair for pair in inputs if not server.has_data(pair[1], **during)] == []
        assert {target["health"] for target in server.get("targets")["activeTargets"]} == {"up"}

        # Negative control: one metric renamed.
        misspelt = json.loads(json.dumps(dashboard).replace("ray_coordexp_mfu{", "ray_coordexp_mfus{"))
        empty = {title for title, expr in panel_queries(misspelt) if not server.has_data(expr, **during)}
        assert empty == {"MFU"}
