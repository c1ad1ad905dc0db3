"""The report in a real browser: it needs no network, every plot is drawn, and it fits a phone."""

import json
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.harness.svg import Axis, Series, line_plot, nice_step, short
from safekeeper.bench.ycsb.compare import Comparison, Point, Sample
from safekeeper.bench.ycsb.properties import YcsbSettings
from safekeeper.bench.ycsb.recover import Recovery
from safekeeper.bench.ycsb.report import to_html

URLS = ("log:///var/lib/<bench>&co", "file:///var/lib/a-store-with-a-rather-long-path/below/several/folders")

# Puts the report into frames of given widths and writes what was laid out into the page, for --dump-dom.
PROBE = """<body><script>
const widths = [390, 1280], report = REPORT, found = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.srcdoc = report;
  frame.onload = () => {
    const page = frame.contentDocument, plots = [...page.querySelectorAll("svg")];
    found.push({
      width, scrolls: page.documentElement.scrollWidth,
      plots: plots.map(plot => plot.getBoundingClientRect().width),
      drawn: plots.map(plot => plot.querySelectorAll("circle").length),
      spreads: plots[0].querySelectorAll(".width").length,
      outside: plots.flatMap(plot => [...plot.querySelectorAll("text")].filter(text => {
        const a = text.getBoundingClientRect(), b = plot.getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1;
      }).map(text => text.textContent)),
      colours: [...page.querySelectorAll(".bar")].map(key => frame.contentWindow.getComputedStyle(key).backgroundColor),
      requests: frame.contentWindow.performance.getEntriesByType("resource").length,
    });
    if (found.length == widths.length) document.body.innerHTML = `<pre id="found">${JSON.stringify(found)}</pre>`;
  };
  document.body.append(frame);
}
</script></body>"""


def comparison(rounds=2):
    random = np.random.default_rng(14)
    points = []
    for threads in (1, 4, 16):
        for url in URLS:
            point = Point(url, threads)
            for number in range(rounds):
                times = random.lognormal(13, 1, 500).astype(np.int64)
                point.latencies.record(times)
                point.samples.append(Sample(url, threads, number, 1e3 * threads, times.mean(), 1, 2, 3, errors=0))
            points.append(point)
    found = Comparison("s4thesis", YcsbSettings(recordcount=1000, operationcount=10_000), points)
    found.recoveries = {URLS[0]: [Recovery(n, n / 1e6, 0, 0.0, n / 1e5, 0) for n in (1000, 100_000)]}
    found.bytes_on_disk = {URLS[0]: 5_000_000, URLS[1]: 1_234_567}
    return found


def test_the_report_renders_in_a_browser_at_the_widths_of_a_phone_and_a_desk(tmp_path):
    html = to_html(comparison(), Machine.here())
    page = tmp_path / "probe.html"
    page.write_text(PROBE.replace("REPORT", json.dumps(html).replace("</", "<\\/")))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    limits = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=60000", "--dump-dom", page.as_uri()]
    done = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=240)
    match = re.search(r'<pre id="found">(.*)</pre>', done.stdout)
    assert match, done.stderr
    found = sorted(json.loads(match[1]), key=lambda one: one["width"])
    assert [one["width"] for one in found] == [390, 1280]
    for one in found:
        assert one["scrolls"] <= one["width"]
        assert len(one["plots"]) == 3
        assert all(300 < width < one["width"] for width in one["plots"])
        assert one["drawn"] == [6, 12, 2]
        assert one["spreads"] == 6
        assert one["outside"] == []
        assert len(set(one["colours"])) == len(URLS)
        assert one["requests"] == 0


def test_stores_far_apart_get_a_logarithmic_axis_and_near_ones_a_linear_one():
    def rates_marked(fastest):
        found = comparison()
        for point in found.points:
            rate = 1000.0 if point.url == URLS[0] else fastest
            point.samples = [replace(sample, throughput=rate) for sample in point.samples]
        plot = to_html(found, Machine.here()).partition("<svg")[2].partition("operations a second")[0]
        return re.findall(r'class="tick middle"[^>]*>([^<]*)<', plot)

    assert rates_marked(3000.0) == ["0", "1k", "2k", "3k", "4k"]
    assert rates_marked(50_000.0) == ["1k", "10k", "100k"]


def test_recoveries_are_listed_with_times_and_memory():
    html = to_html(comparison(), Machine.here())
    assert "<td>100,000</td><td>100</td><td>0</td><td>1,000</td><td>0.0</td>" in html


def test_a_run_by_the_clock_says_for_how_long():
    found = comparison()
    found.settings = replace(found.settings, operationcount=0, maxexecutiontime=2.5)
    assert "2.5 seconds of operations on 1,000 records" in to_html(found, Machine.here())


def test_the_page_refers_to_nothing_outside_itself():
    html = to_html(comparison(), Machine.here())
    assert not re.search(r"https?:|src=|<script|@import|url\(", html)


def test_names_are_text_not_markup():
    html = to_html(comparison(), Machine.here())
    assert "<bench>" not in html
    assert "log:///var/lib/&lt;bench&gt;&amp;co" in html


@pytest.mark.parametrize(("span", "step"), ((5, 1), (7, 2), (100, 20), (0.3, 0.1), (2300, 500)))
def test_marks_are_at_round_numbers(span, step):
    assert nice_step(span) == pytest.approx(step)


@pytest.mark.parametrize(("value", "text"), ((0, "0"), (0.25, "0.25"), (999, "999"), (1500, "1.5k"), (2e6, "2M")))
def test_marks_are_short(value, text):
    assert short(value) == text


@pytest.mark.parametrize("points", ((), ((0.0, 0.0),), ((5.0, 5.0), (5.0, 5.0))))
@pytest.mark.parametrize("logarithmic", (False, True))
def test_a_plot_of_little_or_nothing_is_still_a_plot(points, logarithmic):
    axis = Axis("x", logarithmic)
    assert "nan" not in line_plot("title", axis, axis, [Series("a", points)])
