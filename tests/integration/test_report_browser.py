"""The page in headless Chromium: it is quiet, complete, fits a phone, and obeys the keyboard."""

import base64
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coordexp.cli.main import main
from coordexp.report.make_study import make_study
from coordexp.report.page.page import render_page
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.load import load_experiment
from coordexp.report.study.examples import BinProbabilities, EdgeDistributions
from coordexp.report.study.inputs import Settings
from tests.benchmarks.large_experiment import make_experiment
from tests.support.report import SPITEFUL, write_experiment

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="chromium and chromedriver are not installed"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1280,900",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(migrated_database, folder / "mlflow.db")
    data = load_experiment(write_experiment(folder, seeds=(0, 1)), "paired")
    artifacts = Artifacts(data, cache=folder / "cache", runs_dir=folder)
    study = make_study(data, artifacts, Settings(resamples=20, num_pictures=5))
    curves = {group: BinProbabilities((99, 100, 101), (0.2, 0.5, 0.3), 100.1) for group in data.groups}
    study = dataclasses.replace(study, coord_curves=(EdgeDistributions(3, SPITEFUL, "x1", 101, curves),))
    path = folder / "report.html"
    path.write_text(render_page(study), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def shown(driver: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    emulate(driver)
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)  # what came before is another test's
    driver.get(page.as_uri())
    return driver


def emulate(driver: webdriver.Chrome, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},  # else a click has to wait for the scrolling
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def focused(driver: webdriver.Chrome) -> str:
    script = "const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"
    return driver.execute_script(script)


def visible_boxes(driver: webdriver.Chrome, layer: str) -> int:
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length).length"
    return driver.execute_script(script, f"{layer} .over")


def press(driver: webdriver.Chrome, *keys: str) -> None:
    for key in keys:
        driver.switch_to.active_element.send_keys(key)


def test_it_is_quiet_and_asks_nobody_for_anything(shown: webdriver.Chrome, page: Path) -> None:
    assert shown.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in shown.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert {url for url in urls if not url.startswith("data:")} == {page.as_uri()}
    assert shown.title == "Experiment paired: coordexp report"  # the script in a category's name did not run


def test_every_picture_is_there_with_its_boxes(shown: webdriver.Chrome) -> None:
    panels = "return [...document.querySelectorAll('.picture')].map(p => p.querySelectorAll('.panel').length)"
    assert shown.execute_script(panels) == [4] * 5, "the ground truth and three groups"
    script = (
        "const done = arguments[0]; "
        "const pictures = [...document.querySelectorAll('svg image')].filter(e => !e.closest('.chart'));"
        "Promise.all(pictures.map(e => {"
        "const i = new Image(); i.src = e.getAttribute('href'); "
        "return i.decode().then(() => i.naturalWidth) })).then(done)"
    )
    assert shown.execute_async_script(script) == [120] * 5, "each picture is in the page once"
    drawn = "return [...document.querySelectorAll('.panel use')].map(e => Math.round(e.getBBox().width))"
    assert shown.execute_script(drawn) == [120] * 15
    assert visible_boxes(shown, ".gt") > 0
    # A box lies where its pixels say, whatever the size of the picture.
    script = (
        "const r = document.querySelector('.gt .over'), p = r.closest('svg').getBoundingClientRect();"
        "return [r.getBoundingClientRect().left - p.left, r.getAttribute('x') / 120 * p.width]"
    )
    left, expected = shown.execute_script(script)
    assert left == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_width_scrolls_sideways(shown: webdriver.Chrome, width: int) -> None:
    emulate(shown, width=width, height=740)
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width
    wide = (
        "return [...document.querySelectorAll('figure, .picture, pre, h2, p')].filter(e => e.scrollWidth > innerWidth)"
    )
    assert shown.execute_script(wide) == []
    assert shown.execute_script("return document.querySelector('.chart').getBoundingClientRect().width") > 250


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(shown: webdriver.Chrome, scheme: str) -> None:
    emulate(shown, scheme=scheme)
    script = (
        "return [document.body, document.querySelector('.soft'), document.querySelector('nav a')].map("
        "e => getComputedStyle(e).color).concat(getComputedStyle(document.body).backgroundColor)"
    )
    *inks, paper = shown.execute_script(script)
    assert min(contrast(ink, paper) for ink in inks) >= 4.5
    groups = (
        "return ['g0','g1','g2','g3','g4','g5','g6'].map(c => { const e = document.createElement('i');"
        "e.className = c; e.style.color = 'var(--c)'; document.body.append(e);"
        "const s = getComputedStyle(e).color; e.remove(); return s })"
    )
    colors = shown.execute_script(groups)
    assert len(set(colors)) == 7
    assert min(contrast(color, paper) for color in colors) >= 3
    assert (contrast("rgb(255, 255, 255)", paper) > 10) == (scheme == "dark")


def test_every_chart_is_named_and_whole_at_any_width(shown: webdriver.Chrome) -> None:
    names = shown.execute_script("return [...document.querySelectorAll('.chart')].map(e => e.ariaLabel)")
    assert len(set(names)) == len(names) > 15
    ids = shown.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)
    script = (
        "return [...document.querySelectorAll('.chart text, .chart use')].filter(e => {"
        "const r = e.getBoundingClientRect(), c = e.closest('.chart').getBoundingClientRect();"
        "return r.left < c.left - 2 || r.right > c.right + 2 || r.top < c.top - 2 || r.bottom > c.bottom + 2;})"
        ".map(e => e.closest('.chart').ariaLabel + ': ' + e.textContent)"
    )
    for width in (1280, 360):
        emulate(shown, width=width)
        assert shown.execute_script(script) == []


def contrast(a: str, b: str) -> float:
    """Return WCAG's contrast of two ``rgb(...)`` colours."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_tab_key_starts_at_the_link_to_the_result_and_shows_where_it_is(shown: webdriver.Chrome) -> None:
    press(shown, Keys.TAB)
    assert focused(shown) == "#main"
    press(shown, Keys.TAB)
    assert focused(shown) == "#results"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert shown.execute_script(outline) == "solid"
    press(shown, Keys.ENTER)
    assert shown.execute_script("return location.hash") == "#results"


def test_a_table_shows_means_and_each_seed_when_asked(shown: webdriver.Chrome) -> None:
    script = (
        "const t = document.querySelector('[aria-labelledby=runs] .every + .scroll');"
        "return [...t.querySelectorAll('tbody tr')].filter(r => r.getClientRects().length).map(r => r.className)"
    )
    folded = shown.execute_script(script)
    assert set(folded) == {"mean"}
    shown.execute_script("document.querySelector('[aria-labelledby=runs] .every').scrollIntoView({block: 'center'})")
    shown.find_element(By.CSS_SELECTOR, "[aria-labelledby=runs] .every").click()
    assert set(shown.execute_script(script)) == {"mean", "seed"}
    assert len(shown.execute_script(script)) >= 2 * len(folded)


def test_boxes_are_switched_by_mouse_and_by_key(shown: webdriver.Chrome) -> None:
    whole = {layer: visible_boxes(shown, layer) for layer in (".gt", ".layer-1", ".layer-2", ".layer-3")}
    assert min(whole.values()) > 0
    shown.execute_script("document.querySelector('#show-2').scrollIntoView({block: 'center'})")
    shown.find_element(By.ID, "show-2").click()
    assert visible_boxes(shown, ".layer-2") == 0
    assert visible_boxes(shown, ".layer-1") == whole[".layer-1"]
    press(shown, "2", "0", "3")
    assert visible_boxes(shown, ".layer-2") == whole[".layer-2"]
    assert (visible_boxes(shown, ".gt"), visible_boxes(shown, ".layer-3")) == (0, 0)


def test_arrows_go_through_the_images_and_escape_closes_the_large_one(shown: webdriver.Chrome) -> None:
    links = [link.get_attribute("href").partition("#")[2] for link in shown.find_elements(By.CSS_SELECTOR, ".picture")]
    width = "return document.querySelector('#' + arguments[0] + ' .panel').getBoundingClientRect().width"
    small = shown.execute_script(width, links[1])
    shown.execute_script("document.querySelector('.picture').focus()")
    press(shown, Keys.ARROW_RIGHT)
    assert focused(shown) == f"#{links[1]}"
    press(shown, Keys.ENTER)
    assert shown.execute_script(width, links[1]) > 1.5 * small
    press(shown, Keys.ARROW_RIGHT)
    assert focused(shown) == f"#{links[2]}"
    assert shown.execute_script(width, links[1]) == small  # the next one is the large one now
    press(shown, Keys.ESCAPE)
    assert shown.execute_script(width, links[2]) == small
    assert focused(shown) == f"#{links[2]}"
    press(shown, Keys.END)
    assert focused(shown) == f"#{links[-1]}"
    press(shown, Keys.ARROW_RIGHT)
    assert focused(shown) == f"#{links[-1]}"
    press(shown, Keys.HOME)
    assert focused(shown) == f"#{links[0]}"


def test_without_scripts_it_reads_the_same(shown: webdriver.Chrome, page: Path) -> None:
    shown.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        shown.get(page.as_uri())
        shown.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        assert visible_boxes(shown, ".layer-1") > 0
        shown.find_element(By.ID, "show-1").click()
        assert visible_boxes(shown, ".layer-1") == 0
    finally:
        shown.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "seeds"), [(1, 1), (3, 5), (12, 2)])
def test_a_print_has_at_most_eight_pages(driver: webdriver.Chrome, tmp_path: Path, groups: int, seeds: int) -> None:
    make_experiment(tmp_path, groups=groups, seeds=seeds, images=40, per_image=6)
    assert main(["report", "large", "--runs-dir", str(tmp_path), "--resamples", "100"]) == 0
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get((tmp_path / "large" / "report" / "report.html").as_uri())
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    pages = re.findall(rb"/Type /Page\b(?!s)", base64.b64decode(printed["data"]))
    assert 2 <= len(pages) <= 8
