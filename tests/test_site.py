"""The site: what it shows, that nothing in it can break out, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmark.errors import ArgumentParser, UserError
from benchmark.results import Collection, ResultStore
from leaderboard.site.build import build_site, make_board, read_entries, render, write_site
from leaderboard.site.charts import POINTS, thinned
from leaderboard.site.commands import add_commands
from leaderboard.site.parts import embedded, prose
from leaderboard.site.rows import MEASURED, PUBLISHED, setting_label
from leaderboard.submissions.entry import pack, write_entry
from tests.board_results import grid

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
ROOT = Path(__file__).parent.parent


def collection(results) -> Collection:
    return Collection(list(results), [], {}, {})


def sample_results() -> list:
    return [
        *grid(["fedavg", "fedprox"]),
        *grid(["evil"], label=EVIL[:80]),
        *grid(["styled"], kinds=("weights", "style")),
        *grid(["fedavg"], "Other", domains=("x", "y")),
    ]


@pytest.fixture(scope="module")
def board():
    return make_board(collection(sample_results()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A site of made-up results, the papers' numbers and one entry."""
    place = tmp_path_factory.mktemp("site")
    store = ResultStore(place / "runs")
    for result in sample_results():
        store.put(result)
    write_entry(place / "entries" / "e.json", pack(grid(["fedavg"]), EVIL, EVIL, None))
    build_site(store.root, place / "out", place / "entries")
    return place / "out"


def data_of(text: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_measured_cells_are_means_over_seeds_and_averages_over_domains(board):
    row = next(r for r in board.rows if r.label == "Fedavg" and r.dataset == "Sample")
    assert row.source == MEASURED and row.seeds == 2 and set(row.cells) == {"a", "b", "c"}
    assert row.average.mean == pytest.approx(sum(c.mean for c in row.cells.values()) / 3)
    assert 0 < row.average.mean <= 100 and row.detail == "4 rounds of 5 steps"
    assert [number for number, _ in row.curves["a"]] == [1, 2, 3, 4]


def test_what_leaves_a_client_is_what_was_counted(board):
    shares = {r.label: r.shares for r in board.rows if r.dataset == "Sample"}
    assert shares["Styled"] == ("style",) and shares["Fedavg"] == ()


def test_printed_numbers_stand_beside_ours_with_their_table(board):
    rows = [
        row
        for row in board.rows
        if row.source == PUBLISHED
        and (row.label, row.dataset, row.variant) == ("FedAvg", "PACS", "")
        and row.protocol == "FedFD-A"
        and row.setting == "one client per domain"
    ]
    assert len(rows) == 1
    assert rows[0].average.mean == 77.35 and "Table\N{NO-BREAK SPACE}1, " in rows[0].origin
    assert rows[0].parts == ("fedavg",) and set(rows[0].cells) == set(board.domains["PACS"])


def test_best_is_marked_within_a_comparison_only(board):
    ours = [r for r in board.rows if r.source == MEASURED and r.dataset == "Sample"]
    best = max(round(r.average.mean, 1) for r in ours)
    assert all(("" in r.best) == (round(r.average.mean, 1) == best) for r in ours)
    lone = [r for r in board.rows if r.dataset == "Other"]
    assert len(lone) == 1 and not lone[0].best


def test_a_missing_domain_leaves_the_average_out():
    results = [r for r in grid(["fedavg"]) if r.spec.target != "b"]
    row = make_board(collection(results), published=False, registry=False).rows[0]
    assert row.average is None and "b" not in row.cells


def test_a_partial_cell_says_so():
    results = [r for r in grid(["fedavg"]) if (r.spec.target, r.spec.seed) != ("b", 1)]
    files = render(make_board(collection(results), published=False, registry=False))
    assert "(1/2)" in files["methods/fedavg.html"]


@pytest.mark.parametrize(
    ("partition", "label"),
    [
        ("single_domain", "one client per domain"),
        ("single_domain_k:clients=10", "10 clients per domain"),
        ("dirichlet_label:alpha=0.5", "label skew, Dirichlet 0.5"),
        ("of_my_own:x=1", "of_my_own:x=1"),
    ],
)
def test_settings_are_told_in_words(partition, label):
    assert setting_label(partition) == label


def test_every_registered_method_and_every_dataset_has_a_page(folder):
    from benchmark.protocol import methods

    pages = {path.stem for path in (folder / "methods").glob("*.html")}
    assert set(methods.names()) <= pages
    assert {"pacs", "vlcs", "sample", "other"} <= {
        path.stem for path in (folder / "datasets").glob("*.html")
    }


def test_a_method_page_tells_idea_paper_settings_rows_curves_and_costs(folder):
    text = (folder / "methods/fedprox.html").read_text()
    for part in ("proximal term", "MLSys 2020", "strength of the pull", "<svg", "Check these rows"):
        assert part in text
    assert "0.0357 M" in text and "weights 0.5 MB" in text


def test_every_link_leads_to_a_page(folder):
    for path in folder.rglob("*.html"):
        for link in re.findall(r'href="([^"#]+)', path.read_text()):
            if link != "data:,":
                assert (path.parent / link).is_file(), (path, link)


def test_nothing_is_fetched_from_anywhere(folder):
    for path in folder.rglob("*.html"):
        text = path.read_text()
        assert "default-src 'none'" in text
        assert not re.search(r'(src|href)="?(https?:)?//', text)
        assert "@import" not in text and "url(" not in text


def test_data_cannot_end_its_script():
    assert "<" not in embedded({"a": "</script><!--"}) and ">" not in embedded("-->")
    assert json.loads(embedded({"a": EVIL})) == {"a": EVIL}


def test_hostile_texts_are_escaped_on_every_page(folder):
    for path in folder.rglob("*.html"):
        assert "<img" not in path.read_text() and "<script>window" not in path.read_text()
    assert "&lt;script&gt;" in (folder / "methods/evil.html").read_text()
    rows = data_of((folder / "index.html").read_text())
    assert any(EVIL[:80] in values for values in rows["rows"])


def test_an_entry_that_does_not_pass_is_left_out_with_the_reason(tmp_path, capsys):
    write_entry(tmp_path / "good.json", pack(grid(["fedavg"]), "A", "b", None))
    write_entry(tmp_path / "partial.json", pack(grid(["fedavg"])[:-1], "A", "b", None))
    (tmp_path / "broken.json").write_text('{"kind": 3')
    outside = tmp_path.parent / f"{tmp_path.name}_outside.json"
    write_entry(outside, pack(grid(["fedavg"]), "A", "b", None))
    (tmp_path / "link.json").symlink_to(outside)
    assert [path.name for path, _ in read_entries(tmp_path)] == ["good.json"]
    told = capsys.readouterr().err
    for part in ("partial.json: ", "lacks seeds", "broken.json: ", "link.json: it is a link"):
        assert part in told


def test_names_that_differ_only_in_signs_get_pages_of_their_own():
    results = [*grid(["A b"]), *grid(["a-b"]), *grid(["a.b"])]
    files = render(make_board(collection(results), published=False, registry=False))
    assert {"methods/a-b.html", "methods/a-b-2.html", "methods/a-b-3.html"} <= set(files)
    assert all(".." not in path for path in files)


def test_it_is_built_without_torch(tmp_path):
    store = ResultStore(tmp_path / "runs")
    for result in grid(["fedavg"]):
        store.put(result)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from leaderboard.site.build import build_site\n"
        f"build_site(Path({str(store.root)!r}), Path({str(tmp_path / 'out')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Fedavg" in (tmp_path / "out/methods/fedavg.html").read_text()


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    parser = ArgumentParser(prog="leaderboard")
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(["site", "--out", str(tmp_path / "out")])
    assert options.handler(options) == 0
    assert "index.html" in capsys.readouterr().out
    options = parser.parse_args(["site", "--runs", str(tmp_path / "no"), "--out", str(tmp_path)])
    with pytest.raises(UserError, match="no result store"):
        options.handler(options)


def test_a_docstring_becomes_paragraphs_lists_and_formulas():
    text = "An `x` &\nidea.\n\n    a = b\n\nChosen:\n- one\n  more\n- two"
    assert prose(text) == (
        "<p>An <code>x</code> &amp; idea.</p><pre>a = b</pre>"
        "<p>Chosen:</p><ul><li>one more<li>two</ul>"
    )


def test_long_curves_are_thinned_and_keep_their_ends():
    points = [(number, float(number)) for number in range(1000)]
    few = thinned(points)
    assert len(few) == POINTS and few[0] == points[0] and few[-1] == points[-1]


# In a real browser.

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1280,1000",),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()


@pytest.fixture
def index(browser, folder):
    """Open the index in a fresh state, at a hash; check at the end that nothing was complained of
    and that no text of the data was run."""

    def open_at(hash: str = "") -> None:
        browser.get("about:blank")
        browser.get(f"{(folder / 'index.html').as_uri()}{hash}")
        assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"

    browser.get("about:blank")
    browser.get_log("browser")
    yield open_at
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None


def texts(browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((n) => n.textContent)"
    return browser.execute_script(script, selector)


def labels(browser) -> list[str]:
    return texts(browser, "#body th > :first-child")


def press(browser, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def averages(browser) -> list[float]:
    return [float(text) for text in texts(browser, "#body .avg > :first-child")]


def test_rows_are_sorted_by_any_column_and_the_column_says_so(browser, index):
    index("#dataset=PACS")
    shown = averages(browser)
    assert len(shown) > 20 and shown == sorted(shown, reverse=True)
    press(browser, "[data-sort=average]")
    assert averages(browser) == sorted(shown)
    assert texts(browser, "[aria-sort=ascending]") == ["Average"]
    press(browser, "[data-sort=label]")
    names = [name.lower() for name in labels(browser)]
    assert texts(browser, "[aria-sort=ascending]") == ["Method"]
    assert names[0] == min(names) and names[-1] == max(names)
    for key in browser.execute_script(
        "return [...document.querySelectorAll('[data-sort]')].map((b) => b.dataset.sort)"
    ):
        count = len(labels(browser))
        press(browser, f"[data-sort='{key}']")
        assert len(labels(browser)) == count
        assert len(texts(browser, "[aria-sort]")) == 1


def choose(browser, key: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", key)).select_by_value(value)


def test_filters_narrow_and_combine(browser, index):
    index("#dataset=PACS")
    everything = len(labels(browser))
    choose(browser, "backbone", "resnet50")
    fewer = len(labels(browser))
    assert 0 < fewer < everything
    choose(browser, "setting", "one client per domain")
    assert 0 < len(labels(browser)) < fewer
    choose(browser, "category", "augmentation")
    assert labels(browser) and len(labels(browser)) < fewer
    press(browser, "#reset")
    assert len(labels(browser)) == everything
    choose(browser, "protocol", "gPerXAN")
    assert 0 < len(labels(browser)) < everything


def test_privacy_filter_reads_what_was_counted(browser, index):
    index("#dataset=Sample")
    choose(browser, "shares", "style")
    assert labels(browser) == ["Styled"]
    choose(browser, "shares", "weights only")
    assert "Styled" not in labels(browser) and "Fedavg" in labels(browser)


def test_published_and_measured_are_switched(browser, index):
    index("#dataset=all")
    total = len(labels(browser))
    press(browser, "input[name=source][value=published]")
    published = len(labels(browser))
    assert set(texts(browser, "#body .dot.measured")) == set()
    press(browser, "input[name=source][value=ours]")
    assert len(labels(browser)) + published == total
    assert len(texts(browser, "#body .dot.published")) == 0


def test_search_is_by_words_and_the_slash_leads_to_it(browser, index):
    index("#dataset=all")
    from selenium.webdriver.common.keys import Keys

    browser.find_element("tag name", "body").send_keys("/")
    focused = browser.switch_to.active_element
    assert focused.get_attribute("id") == "search"
    focused.send_keys("fedprox sample")
    assert labels(browser) == ["Fedprox"]
    focused.send_keys(Keys.BACKSPACE * 30, "no such thing")
    assert labels(browser) == [] and browser.find_element("id", "empty").is_displayed()


def test_ablations_are_shown_when_asked_for(browser, index):
    index("#dataset=PACS")
    before = len(labels(browser))
    press(browser, "#ablations")
    assert len(labels(browser)) > before


def test_every_state_has_a_permalink_that_brings_it_back(browser, index):
    index()
    press(browser, "input[name=dataset][value=PACS]")
    choose(browser, "backbone", "resnet18")
    choose(browser, "shares", "weights only")
    press(browser, "#ablations")
    press(browser, "[data-sort='@sketch']")
    browser.find_element("id", "search").send_keys("fed")
    shown, link = labels(browser), browser.current_url
    assert shown and "backbone=resnet18" in link
    index(f"#{link.partition('#')[2]}")
    assert labels(browser) == shown
    assert texts(browser, "[aria-sort=descending]") == ["sketch"]
    assert browser.find_element("id", "backbone").get_attribute("value") == "resnet18"
    assert browser.find_element("id", "search").get_attribute("value") == "fed"


def test_the_way_back_leads_to_the_state_before(browser, index):
    index("#dataset=PACS")
    before = labels(browser)
    press(browser, "input[name=dataset][value=VLCS]")
    assert labels(browser) != before
    browser.back()
    assert labels(browser) == before


def test_a_hostile_permalink_is_only_text(browser, index):
    index(
        "#search=%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E&setting=%3Cb%3E&sort=constructor"
    )
    assert labels(browser) == []


def background(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def prefer(browser, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def test_dark_and_light_follow_the_system_and_the_switch(browser, index):
    prefer(browser, "light")
    index()
    light = background(browser)
    prefer(browser, "dark")
    dark = background(browser)
    assert light != dark
    press(browser, "#theme")
    assert background(browser) == light
    press(browser, "#theme")
    assert background(browser) == dark
    browser.execute_script("localStorage.clear()")
    prefer(browser, "light")


@pytest.fixture
def address(folder):
    """The site on a server: pages of one address share storage at once, files later."""
    handler = partial(Quiet, directory=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


def test_the_chosen_theme_holds_on_other_pages(browser, address):
    browser.get(f"{address}/index.html")
    light = background(browser)
    press(browser, "#theme")
    browser.get(f"{address}/methods/fedavg.html")
    assert background(browser) != light
    press(browser, "#theme")
    browser.get(f"{address}/index.html")
    assert background(browser) == light


CONTRAST = """
const channel = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
const light = (css) => { const [r, g, b] = css.match(/[\\d.]+/g).map(Number);
  return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b); };
const paper = light(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll("a,p,th,td,small,span,summary,button,label")]
  .filter((n) => n.checkVisibility() && n.textContent.trim() && !n.closest(".tabs, .skip"))
  .map((n) => { const ink = light(getComputedStyle(n).color);
    const ratio = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
    return [ratio, n.outerHTML.slice(0, 80)]; })
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(browser, index, scheme):
    prefer(browser, scheme)
    index("#dataset=PACS")
    assert browser.execute_script(CONTRAST) == []
    prefer(browser, "light")


def test_controls_have_names_and_the_table_its_heads(browser, index):
    index("#dataset=PACS")
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input,select')].filter((n) => !n.labels.length)"
    )
    assert unnamed == []
    assert len(texts(browser, "thead th[scope=col]")) == len(texts(browser, "thead th"))
    assert len(texts(browser, "#body th[scope=row]")) == len(texts(browser, "#body tr"))
    assert re.match(r"\d+ of \d+ rows", texts(browser, "#status")[0])


@pytest.mark.parametrize(
    "page", ["index.html#dataset=PACS", "methods/fedavg.html", "datasets/pacs.html"]
)
def test_a_phone_shows_every_page_without_sideways_scrolling(browser, index, folder, page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(f"{folder.as_uri()}/{page}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert browser.find_element("tag name", "h1").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_method_opens_from_its_row_and_leads_home(browser, index):
    index("#dataset=Sample&search=fedprox")
    browser.find_element("css selector", "#body a").click()
    assert texts(browser, "h1") == ["FedProx"]
    assert len(texts(browser, "svg .l")) == 3
    browser.find_element("css selector", ".brand").click()
    assert "Trained together" in texts(browser, "h1")[0]


def test_hostile_labels_are_shown_as_text(browser, index, folder):
    index("#dataset=Sample")
    assert EVIL[:80] in labels(browser)
    assert f"submitted by {EVIL}" in texts(browser, "#body .dot.submitted")
    assert texts(browser, "#body img") == []
    browser.get((folder / "methods/evil.html").as_uri())
    assert texts(browser, "h1") == [EVIL[:80]] and texts(browser, "main img") == []


def test_fifty_methods_on_seven_datasets_stay_small(browser, tmp_path):
    from benchmark.protocol import methods
    from datasets.base import open_dataset

    names = ("PACS", "VLCS", "OfficeHome", "DomainNet", "DomainNet10", "DigitsDG", "Camelyon17")
    results = [
        result
        for name in names
        for result in grid(methods.names()[:50], name, domains=open_dataset(name).domains)
    ]
    board = make_board(collection(results))
    assert sum(row.source == MEASURED for row in board.rows) == 350
    size = write_site(render(board), tmp_path)
    assert size < 2_000_000 and (tmp_path / "index.html").stat().st_size < 500_000
    browser.get((tmp_path / "index.html").as_uri() + "#dataset=all")
    assert len(labels(browser)) > 500
