"""The alerts: promtool accepts them, each fires on its series and not on a healthy one, each has its runbook."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DASHBOARDS = Path(__file__).parents[3] / "dashboards"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


@pytest.fixture(scope="module")
def rules():
    groups = yaml.safe_load((DASHBOARDS / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments, cwd=DASHBOARDS / "prometheus"):
    done = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_alerts_read_recorded_series(rules):
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {name for rule in rules if "alert" in rule for name in re.findall(r"coordexp:\w+", rule["expr"])}
    assert read == recorded


@needs_promtool
def test_the_panel_of_losses_not_finite_shows_a_run_whose_worker_is_gone(tmp_path):
    """The worker tells of rows, the ablation's process of runs that diverged: the first ends before the second."""
    dashboard = json.loads((DASHBOARDS / "grafana" / "dashboards" / "coordexp.json").read_text())
    panel = next(panel for panel in dashboard["panels"] if panel["title"] == "Restarts and losses not finite")
    expr = next(target["expr"] for target in panel["targets"] if "not finite" in target["legendFormat"])
    labels = 'experiment="e", group="A", seed="0"'
    series = [
        {"series": f'ray_coordexp_run_diverged{{{labels}, run="gone"}}', "values": "0x2 1x5"},
        {"series": f'ray_coordexp_nonfinite_rows{{{labels}, run="gone"}}', "values": "0 1 1 stale"},
        {"series": f'ray_coordexp_run_diverged{{{labels}, run="both"}}', "values": "0x7"},
        {"series": f'ray_coordexp_nonfinite_rows{{{labels}, run="both"}}', "values": "2x7"},
        {"series": f'ray_coordexp_nonfinite_rows{{{labels}, run="alone"}}', "values": "3x7"},
    ]
    values = {"gone": 1, "both": 2, "alone": 3}
    samples = [{"labels": f'{{run="{run}"}}', "value": value} for run, value in values.items()]
    asked = {"expr": re.sub(r"\$\w+", ".*", expr), "eval_time": "7m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [test]}))
    code, output = promtool("test", "rules", tmp_path / "test.yml")
    assert code == 0, output


def test_every_alert_is_tested_and_leads_to_its_section_of_the_runbook(rules):
    alerts = [rule for rule in rules if "alert" in rule]
    tests = (DASHBOARDS / "prometheus" / "alerts.test.yml").read_text()
    runbook = (DASHBOARDS.parent / "docs" / "cluster.md").read_text()
    sections = re.findall(r"^#+ (alarm-[a-z-]+)$", runbook, re.MULTILINE)
    assert len(set(sections)) == len(alerts) >= 11
    for rule, section in zip(alerts, sections, strict=True):
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/cluster.md#{section}"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["alert"] in tests


@needs_promtool
# Only the syntax: the file of targets is there once a Ray has run on the machine.
@pytest.mark.parametrize(
    "arguments", [("check", "config", "--syntax-only", "prometheus.yml"), ("check", "rules", "alerts.yml")]
)
def test_promtool_accepts(arguments):
    code, output = promtool(*arguments)
    assert code == 0, output


@needs_promtool
def test_the_kubernetes_configuration_is_one_but_for_its_discovery(tmp_path):
    text = (DASHBOARDS / "prometheus" / "prometheus.kuberay.yml").read_text()
    config = yaml.safe_load(text)
    (discovery,) = config["scrape_configs"][0].pop("kubernetes_sd_configs")  # Debian's promtool is built without
    assert discovery == {"role": "pod", "namespaces": {"own_namespace": True}}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DASHBOARDS / "prometheus" / "alerts.yml", tmp_path)
    code, output = promtool("check", "config", "prometheus.yml", cwd=tmp_path)
    assert code == 0, output


@needs_promtool
def test_alerts_fire_on_their_series_and_not_on_healthy_ones(tmp_path):
    code, output = promtool("test", "rules", "alerts.test.yml")
    assert code == 0, output
