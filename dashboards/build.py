"""Writes ``grafana/dashboards/coordexp.json``: ``python dashboards/build.py``. A test compares the two."""

import json
import re
from pathlib import Path

from panels import COLOURS, STATES, Panel, Query, rows

Json = dict[str, object]

DASHBOARD = Path(__file__).parent / "grafana" / "dashboards" / "coordexp.json"
SOURCE = {"type": "prometheus", "uid": "coordexp-prometheus"}


def build() -> Json:
    """Return the dashboard."""
    panels: list[Json] = []
    top = 0
    for title, members in rows().items():
        panels.append(_row(title, top, number=len(panels) + 1))
        top += 1
        left = height = 0
        for panel in members:
            if left + panel.width > 24:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, place, number=len(panels) + 1))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": "coordexp",
        "title": "coordexp",
        "description": "Live runs of an ablation: losses, AP, speed, memory, faults.",
        "tags": ["coordexp"],
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "10s",
        "schemaVersion": 38,
        "panels": panels,
        "templating": {"list": _variables()},
        "links": [
            _link("MLflow", "${mlflow_url}", "All curves and parameters of all experiments"),
            _link("Ray", "${ray_url}", "Nodes, processes and logs"),
            _link("Runbook", "${docs_url}/cluster.md", "What to do when an alarm fires"),
        ],
    }


def text() -> str:
    """Return the dashboard as it is committed."""
    return json.dumps(build(), indent=1) + "\n"


def _row(title: str, top: int, *, number: int) -> Json:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, place: Json, *, number: int) -> Json:
    defaults: Json = {"unit": panel.unit, "mappings": _mappings(panel), "thresholds": _thresholds(panel)}
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    defaults |= _LOOKS[panel.kind](panel)
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(query, letter) for query, letter in zip(panel.queries, "ABCDEF", strict=False)],
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
    }


def _target(query: Query, letter: str) -> Json:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "value",
        "instant": query.instant,
        "range": not query.instant,
    }


def _thresholds(panel: Panel) -> Json:
    steps: list[Json] = [{"value": None, "color": "green"}]
    if panel.red_from is not None:
        steps.append({"value": panel.red_from, "color": "red"})
    return {"mode": "absolute", "steps": steps}


def _mappings(panel: Panel) -> list[Json]:
    """Name and colour the states, which travel as numbers."""
    if panel.kind != "state-timeline":
        return []
    states = enumerate(STATES.items())
    named = {str(number): {"text": name, "color": colour, "index": number} for number, (name, colour) in states}
    return [{"type": "value", "options": named}]


def _overrides(panel: Panel) -> list[Json]:
    """Fix a group's colour, whether a line is the group's mean or one run; dash what is not training."""
    if panel.kind != "timeseries":
        return []
    coloured = [
        _override(f"/^{re.escape(group)}(-s\\d+)?( |$)/", "color", {"mode": "fixed", "fixedColor": colour})
        for group, colour in COLOURS.items()
    ]
    dashed = _override("/ (validation|reserved)$/", "custom.lineStyle", {"fill": "dash", "dash": [6, 6]})
    return [*coloured, dashed, _override("/ peak$/", "custom.lineStyle", {"fill": "dot", "dash": [2, 6]})]


def _override(pattern: str, name: str, value: object) -> Json:
    return {"matcher": {"id": "byRegexp", "options": pattern}, "properties": [{"id": name, "value": value}]}


def _curve_look(panel: Panel) -> Json:
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 0,
        "showPoints": "never",
        "spanNulls": 60_000,  # ms: a scrape may fail, but what ended does not go on
        "thresholdsStyle": {"mode": "off" if panel.red_from is None else "dashed"},
    }
    return {"color": {"mode": "palette-classic-by-name"}, "custom": custom}


def _state_look(panel: Panel) -> Json:
    del panel
    return {"color": {"mode": "thresholds"}, "custom": {"fillOpacity": 80, "lineWidth": 0}}


def _plain_look(panel: Panel) -> Json:
    return {"color": {"mode": "thresholds" if panel.red_from is not None else "fixed", "fixedColor": "text"}}


def _bar_look(panel: Panel) -> Json:
    del panel
    return {"color": {"mode": "palette-classic-by-name"}}


_REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LOOKS = {"timeseries": _curve_look, "state-timeline": _state_look, "stat": _plain_look, "bargauge": _bar_look}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "state-timeline": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
        "showValue": "never",
        "rowHeight": 0.8,
        "mergeValues": True,
    },
    "stat": {
        "reduceOptions": _REDUCE,
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "bargauge": {
        "reduceOptions": _REDUCE,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
    },
}


def _variables() -> list[Json]:
    within = 'experiment=~"$experiment"'
    return [
        _labels("experiment", "ray_coordexp_runs", "experiment", many=False),
        _labels("group", f"ray_coordexp_run_state{{{within}}}", "group", many=True),
        _labels("seed", f'ray_coordexp_run_state{{{within}, group=~"$group"}}', "seed", many=True),
        {
            "type": "custom",
            "name": "lines",
            "label": "a line for each",
            "query": "group,run",
            "current": {"text": "group", "value": "group", "selected": True},
            "options": [
                {"text": "group", "value": "group", "selected": True},
                {"text": "run", "value": "run", "selected": False},
            ],
            "multi": False,
            "includeAll": False,
        },
        _address("mlflow_url", "MLflow", "http://127.0.0.1:5000"),
        _address("ray_url", "Ray", "http://127.0.0.1:8265"),
        _address("docs_url", "docs", "http://127.0.0.1:8000"),
    ]


def _labels(name: str, metric: str, label: str, *, many: bool) -> Json:
    return {
        "type": "query",
        "name": name,
        "label": name,
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all", "selected": True}} if many else {}),
    }


def _address(name: str, label: str, url: str) -> Json:
    current = {"text": url, "value": url, "selected": True}
    hidden = 2
    return {
        "type": "textbox",
        "name": name,
        "label": label,
        "query": url,
        "current": current,
        "options": [current],
        "hide": hidden,
    }


def _link(title: str, url: str, tooltip: str) -> Json:
    return {
        "type": "link",
        "title": title,
        "url": url,
        "tooltip": tooltip,
        "icon": "external link",
        "targetBlank": True,
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
    }


if __name__ == "__main__":
    DASHBOARD.parent.mkdir(parents=True, exist_ok=True)
    DASHBOARD.write_text(text(), encoding="utf-8")
