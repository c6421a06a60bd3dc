"""The dashboard and the README agree with the code, the alerts and Grafana's own model."""

import copy
import json
import re
from pathlib import Path

import build
import panels
import pytest
import tables
import yaml

from coordexp.cluster.gauges import EXPORTED, STATES

ROOT = Path(__file__).parents[3]
DASHBOARDS = ROOT / "dashboards"
NAMES = {f"ray_{metric.name}": metric for metric in EXPORTED.values()}


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(build.DASHBOARD.read_text())


@pytest.fixture(scope="module")
def rules():
    groups = yaml.safe_load((DASHBOARDS / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def lost(given, back, path="dashboard"):
    """Yield each key or value of ``given`` that is not in ``back``."""
    if isinstance(given, dict) and isinstance(back, dict):
        for key, value in given.items():
            if key not in back:
                yield f"{path}.{key}"
            else:
                yield from lost(value, back[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for number, (value, other) in enumerate(zip(given, back, strict=True)):
            yield from lost(value, other, f"{path}[{number}]")
    elif given != back or type(given) is not type(back):
        yield f"{path}: {given!r} became {back!r}"


def through_grafanas_model(dashboard):
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(copy.deepcopy(dashboard)), cls=JSONEncoder))


def expressions(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_the_committed_dashboard_is_what_the_script_writes():
    assert build.DASHBOARD.read_text() == build.text()


def test_the_tables_of_the_readme_are_what_the_script_writes():
    text = tables.README.read_text()
    assert text == tables.with_tables(text)
    assert all(f"`{name}`" in text for name in NAMES)
    with pytest.raises(ValueError, match="found 0 tables"):
        tables.with_tables("no marks")


def test_every_key_survives_grafanas_own_model(dashboard):
    assert list(lost(dashboard, through_grafanas_model(dashboard))) == []


def test_units_and_kinds_are_grafanas(dashboard):
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.models import units

    known = {value for name, value in vars(units).items() if isinstance(value, str) and name[0].isupper()}
    used = {panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard["panels"] if panel["type"] != "row"}
    assert used == {"short", "percentunit", "bytes", "s"}
    assert used <= known


def unknown_series(expr):
    """Return metrics and labels of an expression that nothing exports."""
    found = []
    for name, selector in re.findall(r"(ray_coordexp_\w+)(?:\{([^}]*)\})?", expr):
        labels = set(re.findall(r"(\w+)=~?\"", selector))
        if name not in NAMES:
            found.append(name)
        elif not labels <= set(NAMES[name].labels):
            found.append(f"{name} {labels - set(NAMES[name].labels)}")
    return found


def test_panels_and_rules_read_what_is_exported(dashboard, rules):
    exprs = [*expressions(dashboard), *(rule["expr"] for rule in rules)]
    exprs += [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert [found for expr in exprs for found in unknown_series(expr)] == []
    assert {name for expr in exprs for name in re.findall(r"ray_coordexp_\w+", expr)} == set(NAMES) - {
        "ray_coordexp_learning_rate"  # for whoever asks
    }
    assert unknown_series('max(ray_coordexp_mfus{run="x"})') == ["ray_coordexp_mfus"]
    assert unknown_series('max(ray_coordexp_mfu{rum="x"})') == ["ray_coordexp_mfu {'rum'}"]


def test_states_are_the_exporters():
    assert tuple(panels.STATES) == STATES


@pytest.mark.parametrize(("line", "group"), [("A", "A"), ("A-s0", "A"), ("A validation", "A"), ("C_D-s12 peak", "C_D")])
def test_the_colour_of_a_line_is_its_groups(dashboard, line, group):
    panel = next(panel for panel in dashboard["panels"] if panel["title"] == "Text")
    fixed = [
        override["properties"][0]["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
        if override["properties"][0]["id"] == "color" and re.search(override["matcher"]["options"].strip("/"), line)
    ]
    assert fixed == [panels.COLOURS[group]]


def test_shipped_files_hold_no_path_of_a_machine_and_listen_on_loopback():
    shipped = [path for path in DASHBOARDS.rglob("*") if path.suffix in (".yml", ".json", ".md", ".py")]
    assert {".yml", ".json", ".md", ".py"} == {path.suffix for path in shipped}
    for path in shipped:
        text = path.read_text()
        assert not re.search(r"/(home|root|work|Users)/", text), path
        assert "0.0.0.0" not in text, path
        addresses = re.findall(r"https?://([\w.]+):\d+", text)
        assert set(addresses) <= {"127.0.0.1"}, path
