"""A real Prometheus on a free port of loopback, with the shipped configuration at a faster pace."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tests.support.ports import free_port

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
VARIABLES = {"$experiment": "live", "$group": "(A|B)", "$seed": ".*", "$__rate_interval": "30s", "$__range": "10m"}


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: object) -> dict:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def has_data(self, expr: str, *, start: float, end: float) -> bool:
        """Ask as a panel does, over the whole time; NaN is no data."""
        found = self.get("query_range", query=expr, start=start, end=end, step=1)["result"]
        return any(value != "NaN" for series in found for _, value in series["values"])

    def wait_for(self, expr: str, *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.get("query", query=expr)["result"]:
            assert time.monotonic() < deadline, f"no data for {expr}"
            time.sleep(0.5)


@contextlib.contextmanager
def prometheus(folder: Path, *, discovery: Path):
    """Start it with a copy of our configuration: other paths, one second instead of ten; end it with the block."""
    text = (DASHBOARDS / "prometheus" / "prometheus.yml").read_text()
    text, changed = re.subn(r"(scrape_interval|evaluation_interval|refresh_interval): \d+s", r"\1: 1s", text)
    assert changed == 3
    text, changed = re.subn(r"/tmp/ray/prom_metrics_service_discovery.json", str(discovery), text)
    assert changed == 1
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(DASHBOARDS / "prometheus" / "alerts.yml", folder)
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            found = Prometheus(port)
            _wait_until_ready(found, server)
            yield found
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait_until_ready(found: Prometheus, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "prometheus ended; see prometheus.log"
        try:
            with urllib.request.urlopen(f"{found.url}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError("prometheus is not ready after 60 s")


def panel_queries(dashboard: dict) -> list[tuple[str, str]]:
    """Return (panel title, expression) with the variables put in, each line variable both ways."""
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(name, value)
            ways = ("group", "run") if "$lines" in expr else ("",)
            found += [(panel["title"], expr.replace("$lines", way)) for way in ways]
    assert not [expr for _, expr in found if "$" in expr]
    return found


def alert_inputs(rules: dict) -> list[tuple[str, str]]:
    """Return (alert or recording rule, selector of a series it reads)."""
    selector = re.compile(r"(?:ray_coordexp_|coordexp:)\w+(?:\{[^}]*\})?|up\{[^}]*\}")
    return [
        (rule.get("alert") or rule["record"], series)
        for group in rules["groups"]
        for rule in group["rules"]
        for series in selector.findall(rule["expr"])
    ]
