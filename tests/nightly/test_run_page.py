"""report.html of a run in a real browser: charts with curves, values under the mouse, readable in both schemes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browser import CONTRAST, opened

HOSTILE = "<img src=x onerror='window.harmed = 1'>"
STEPS = 100_000  # of which each is recorded


def write_run(run_dir: Path) -> None:
    """Write what a long run leaves, with a name, a metric and an option that would do harm as HTML."""
    run_dir.mkdir()
    records = [{"step": 0, "time": 0, "event": "started", "about": f"world size 2, {run_dir}"}]
    records += [{"step": step, "time": step, "train/loss": 1 / step} for step in range(1, STEPS)]
    records[STEPS // 2]["train/<script>window.harmed=2</script>"] = 5
    records.append({"step": 99_999, "time": 99_999, "train/accuracy": math.nan, "lr": 0.1})
    (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records) + "hello <script>")
    (run_dir / "config.json").write_text(json.dumps({"lr": 0.1, "name": HOSTILE}))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_long_run_is_a_small_page_that_can_be_read(
    package: Callable[..., Any], browser: Browser, tmp_path: Path, scheme: str
) -> None:
    runs = [tmp_path / "one", tmp_path / HOSTILE.replace("/", "")]
    for run_dir in runs:
        write_run(run_dir)
    page_file = tmp_path / "report.html"
    package("runtime.report").write_page(runs, page_file)
    assert page_file.stat().st_size < 200_000
    address = page_file.as_uri()
    with opened(browser, address, (address,), color_scheme=scheme) as page:
        charts = page.locator("figure")
        assert charts.locator("b").all_inner_texts() == ["loss", "<script>window.harmed=2</script>", "lr"]
        assert [chart.locator("path").count() for chart in charts.all()] == [2, 2, 2]
        for chosen in ("p", "b", "td", "figcaption"):
            assert page.locator(chosen).first.evaluate(CONTRAST) >= 4.5, f"{chosen} is hard to read"
        last = charts.first.locator("circle").last
        last.hover()
        assert last.evaluate("circle => getComputedStyle(circle).opacity") == "1"
        assert last.locator("title").text_content() == f"{runs[1].name} training, step 99,999: 1e-05"
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
