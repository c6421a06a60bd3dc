"""What the dashboard shows: every panel with its queries. ``build.py`` turns it into Grafana's JSON."""

from dataclasses import dataclass, replace

# As in the report's figures. Grafana gives a group of another name a colour by that name.
COLOURS = {
    "A": "#0072B2",
    "B": "#D55E00",
    "C": "#009E73",
    "D": "#CC79A7",
    "B_gate": "#E69F00",
    "C_D": "#56B4E9",
    "A_again": "#999999",
}
STATES = {
    "waiting": "#8e8e8e",
    "running": "#0072B2",
    "finished": "#009E73",
    "failed": "#C4162A",
    "stopped": "#E69F00",
    "pruned": "#CC79A7",
}
RUNS = 'experiment=~"$experiment", group=~"$group", seed=~"$seed"'
EXPERIMENT = 'experiment=~"$experiment"'
LINE = "{{group}}{{run}}"


@dataclass(frozen=True)
class Query:
    """One query of a panel and how its series are named."""

    expr: str
    legend: str
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """What a panel shows; ``build`` places it.

    Attributes:
        title: above the panel.
        queries: each gives some of its series.
        description: what Grafana shows behind the panel's (i).
        kind: Grafana's type of panel.
        unit: Grafana's name of the unit.
        width: of 24 columns.
        height: in rows of 30 px.
        red_from: values from here on are red, and a dashed line in curves.
        minimum: of the axis.
        maximum: of the axis.
    """

    title: str
    queries: tuple[Query, ...]
    description: str
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 6
    height: int = 8
    red_from: float | None = None
    minimum: float | None = None
    maximum: float | None = None


def rows() -> dict[str, list[Panel]]:
    """Return all panels, by the row they stand in."""
    return {
        "The ablation": _ablation(),
        "Loss terms": _losses(),
        "AP": _ap(),
        "Speed": _speed(),
        "Memory and faults": _faults(),
    }


def series(metric: str, labels: str = "") -> str:
    """Return one line for each group, the mean of its runs, or for each run, as the variable ``lines`` says."""
    within = f"{RUNS}, {labels}" if labels else RUNS
    return f"avg by ($lines) (max by (experiment, group, seed, run) (ray_{metric}{{{within}}}))"


def by_run(metric: str, labels: str = "") -> str:
    """Return one series for each run, whichever worker process sent it."""
    within = f"{RUNS}, {labels}" if labels else RUNS
    return f"max by (run) (ray_{metric}{{{within}}})"


def _curves(title: str, metric: str, description: str, labels: str = "") -> Panel:
    return Panel(title, (Query(series(metric, labels), LINE),), description, minimum=0)


def _fraction(panel: Panel, *, red_from: float | None = None, maximum: float | None = None) -> Panel:
    return replace(panel, unit="percentunit", red_from=red_from, maximum=maximum)


def _ablation() -> list[Panel]:
    queue = tuple(
        Query(f'sum(ray_coordexp_runs{{{EXPERIMENT}, state="{name}"}})', name, instant=True) for name in STATES
    )
    done = f"{by_run('coordexp_step')} / {by_run('coordexp_max_steps')}"
    numbers = [
        Panel("Queue", queue, "Runs in each state. No data: no ablation is going on.", width=9),
        Panel("Running for", (_number("max(ray_coordexp_ablation_seconds{" + EXPERIMENT + "})"),), "", unit="s"),
        Panel(
            "Restarts",
            (_number(f"sum({by_run('coordexp_restarts')})"),),
            "Runs started again after a failure. Runbook: alarm-run-restarted.",
            width=4,
            red_from=1,
        ),
        Panel(
            "Alarms",
            (_number(f"sum({by_run('coordexp_alarms')})"),),
            "Raised by the runs: silent terms, losses far apart. Runbook: alarm-alarm-raised.",
            width=5,
            red_from=1,
        ),
    ]
    return [
        *(replace(panel, kind="stat", height=5) for panel in numbers),
        Panel(
            "State of each run",
            (Query(by_run("coordexp_run_state"), "{{run}}"),),
            "From the run's own status, not from its last value: what ended does not look alive.",
            kind="state-timeline",
            width=14,
        ),
        Panel(
            "Progress",
            (Query(done, "{{run}}", instant=True),),
            "Steps done of the run's max_steps.",
            kind="bargauge",
            unit="percentunit",
            width=10,
            minimum=0,
            maximum=1,
        ),
    ]


def _number(expr: str) -> Query:
    return Query(expr, "", instant=True)


def _losses() -> list[Panel]:
    return [
        _loss("total", "Total loss", "The weighted sum that is minimised; its terms differ between groups."),
        _loss("text", "Text", "Cross-entropy of supervised text tokens."),
        _loss("coord", "Coordinates, geometric", "alpha L1 + beta (1 - GIoU) of the expected boxes."),
        _loss("coord_ce", "Coordinates, cross-entropy", "Cross-entropy of coord tokens."),
        _diagnostic("expected_bin_mae", "Bins off", "|expected - true bin|, mean; 10 bins are 1 % of the image."),
        _fraction(
            _diagnostic(
                "coord_vocab_mass",
                "Mass on the coord vocabulary",
                "Falls where nothing teaches the model to emit coord tokens.",
            ),
            maximum=1,
        ),
        _diagnostic("loss", "Distribution loss", "Weighted sum of softCE, W1 and gate, where they are on."),
        _curves("Gradient norm", "coordexp_grad_norm", "Of the whole gradient, before clipping."),
    ]


def _loss(term: str, title: str, description: str) -> Panel:
    queries = tuple(
        Query(series("coordexp_loss", f'phase="{phase}", term="{term}"'), LINE + suffix)
        for phase, suffix in (("train", ""), ("eval", " validation"))
    )
    return Panel(title, queries, f"{description} Dashed: on validation images.")


def _diagnostic(name: str, title: str, description: str) -> Panel:
    return _curves(title, "coordexp_coord_diag", description, f'phase="train", name="{name}"')


def _ap() -> list[Panel]:
    during = [
        Panel(
            f"AP, {boxes} boxes, subset",
            (Query(series("coordexp_ap", f'images="subset", {_constrained(boxes)}'), LINE),),
            "COCO AP on the fixed subset during training, under the grammar. Runbook: alarm-ap-collapsed.",
            width=8,
            minimum=0,
        )
        for boxes in ("argmax", "expected")
    ]
    description = "The final evaluations within the time shown, under the grammar; the report has all of them."
    final = tuple(
        Query(
            _final("coordexp_ap", f'images="all", {_constrained(boxes)}', by="$lines"),
            f"{LINE} {boxes}",
            instant=True,
        )
        for boxes in ("argmax", "expected")
    )
    within = 'decoding="constrained", boxes="expected"'
    others = Query(
        _final("coordexp_detection", f'images="all", {within}', by="metric, $lines"),
        "{{metric}} " + LINE,
        instant=True,
    )
    return [
        *during,
        Panel("AP, all images", final, description, kind="bargauge", width=8, minimum=0),
        Panel(
            "Other detection metrics, all images",
            (others,),
            f"Of expected boxes. {description}",
            kind="bargauge",
            width=24,
            minimum=0,
        ),
    ]


def _final(metric: str, labels: str, *, by: str) -> str:
    """Return the final values: published until the ablation ends, so the last ones in view are shown."""
    own = by.replace("$lines", "experiment, group, seed, run")
    return f"avg by ({by}) (max by ({own}) (last_over_time(ray_{metric}{{{RUNS}, {labels}}}[$__range])))"


def _constrained(boxes: str) -> str:
    return f'decoding="constrained", boxes="{boxes}", metric="AP"'


def _speed() -> list[Panel]:
    waiting = "Share of training in which workers waited for data. Runbook: alarm-waiting-for-data."
    return [
        _curves("Images a second", "coordexp_images_per_second", "All workers of a run. Runbook: throughput-falling."),
        _curves("Tokens a second", "coordexp_tokens_per_second", "All workers of a run."),
        _fraction(_curves("MFU", "coordexp_mfu", "Model FLOP utilisation.")),
        _fraction(_curves("Waiting for data", "coordexp_data_wait_fraction", waiting), red_from=0.2),
        Panel(
            "Since the last row",
            (Query(f"time() - {by_run('coordexp_last_step_time_seconds')}", "{{run}}"),),
            "Grows in evaluations; in training a run counts as stalled after 15 minutes. Runbook: alarm-run-stalled.",
            unit="s",
            minimum=0,
            red_from=900,
        ),
    ]


def _faults() -> list[Panel]:
    memory = tuple(
        Query(series("coordexp_memory_bytes", f'kind="{kind}"'), f"{LINE} {kind}")
        for kind in ("allocated", "reserved", "peak")
    )
    peak, limit = (by_run("coordexp_memory_bytes", f'kind="{kind}"') for kind in ("peak", "limit"))
    diverged, rows_lost = by_run("coordexp_run_diverged"), by_run("coordexp_nonfinite_rows")
    # The worker's values are gone before the run is known to have diverged.
    nonfinite = f"({diverged} + {rows_lost}) or {diverged} or {rows_lost}"
    firing = 'sum by (alertname) (ALERTS{alertname=~"Coordexp.*", alertstate="firing"}) or vector(0)'
    near = Panel("Peak of the memory", (Query(f"{peak} / {limit}", "{{run}}"),), "Runbook: alarm-memory-near-limit.")
    return [
        Panel(
            "Memory of the device",
            memory,
            "Rank 0's GPU; on CPU the resident memory of its process. Dashed: reserved; dotted: peak.",
            unit="bytes",
            minimum=0,
        ),
        replace(_fraction(near, red_from=0.92, maximum=1), minimum=0),
        Panel(
            "Restarts and losses not finite",
            (
                Query(by_run("coordexp_restarts"), "{{run}} restarts"),
                Query(nonfinite, "{{run}} not finite"),
            ),
            "Runbook: alarm-run-restarted, alarm-non-finite-loss.",
            minimum=0,
            red_from=1,
        ),
        Panel(
            "Firing alerts",
            (Query(firing, "{{alertname}}"),),
            "Series of each alert that fire; 0 without a name: none.",
            minimum=0,
            red_from=1,
        ),
    ]
