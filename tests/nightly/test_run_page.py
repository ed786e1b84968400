"""The page of runs as a browser shows it: what it says, how its charts are used, and how it follows a run."""

import json
import math
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from PIL import Image

from tests.conftest import Package, Render
from tests.support.browser import CONTRAST, opened, violations
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror='window.harmed = 1'>"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1360, "height": 860}
BEGUN, PAUSE = 1_700_000_000.0, 5000.0  # seconds
SOON = 60_000  # milliseconds until an open page must have followed, on a machine with much to do
START = {
    "about": "world size 2",
    "sets": ["validation", "other"],
    "best": "accuracy",
    "higher": True,
    "unit": "tokens",
    "host": "elsewhere",
    "changed": ["lr"],
    "commit": "0123456789ab",
}
BEST = {"step": 300, "accuracy": 0.875, "loss": 0.5}


def records(steps: int, **start: Any) -> list[dict[str, Any]]:
    """What a run records that failed and was resumed from half of its steps, with two spikes: one second a step."""
    found: list[dict[str, Any]] = [{"step": 0, "time": BEGUN, "event": "started", **START, **start}]
    now = BEGUN
    for step in range(1, steps + 1):
        now += 1
        loss = 1 + math.exp(-step / 100) + 0.01 * math.sin(step)
        counts = {"samples": 8 * step, "tokens": 800.0 * step, "samples_per_second": 8.0 + step % 3}
        loss = 1e4 if step in (222, 333) else loss
        found.append({"step": step, "time": now, "train/loss": loss, "lr": step * 1e-3, **counts, "waiting/data": 0.1})
        if step % 100 == 0:
            accuracy = 0.875 if step == 300 else 0.5 + step / 10_000
            of_sets = {"epoch/train_loss": 1.5, "epoch/validation_loss": 1.25, "epoch/other_loss": 2.5}
            found.append(
                {"step": step, "time": now, "epoch": step // 100, **of_sets, "epoch/validation_accuracy": accuracy}
            )
        if step == steps // 2:
            found.append({"step": steps + 100, "time": now, "event": "failed", "why": "KeyError: 0"})
            now += PAUSE
            found.append({"step": step, "time": now, "event": "resumed", **START, **start})
    return found


def write_run(run_dir: Path, end: dict[str, Any] | None, options: dict[str, Any] | None = None, **start: Any) -> Path:
    """Write what a run of 400 steps leaves, and how it ended, if it told."""
    run_dir.mkdir(parents=True)
    lines = records(400, **start)
    lines += [{"step": 400, "time": lines[-1]["time"], **end}] if end else []
    (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run_dir / "config.json").write_text(json.dumps({"lr": 0.1, "seed": 0, "name": HOSTILE, **(options or {})}))
    (run_dir / "in-use").touch()
    return run_dir


def write_result(run_dir: Path, code: int) -> None:
    result = {
        "exit_code": code,
        "step": 400,
        "best": BEST,
        "test": {"accuracy": 0.75},
        "samples": 3200,
        "tokens": 320_000.0,
    }
    (run_dir / "result.json").write_text(json.dumps({**result, "commit": "0123456789ab"}))


@pytest.fixture(scope="module")
def report(package: Package) -> Any:
    return package("runtime.report")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = write_run(tmp_path_factory.mktemp("runs") / f"one {HOSTILE.replace('/', '')}", {"event": "done"})
    write_result(run_dir, 0)
    shown = run_dir / "shown"
    shown.mkdir()
    (shown / "text.txt").write_text(HOSTILE)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:h="http://www.w3.org/1999/xhtml"'
    leads_away = '<h:meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/"/>'
    (shown / "bars.svg").write_text(f'<svg {names} viewBox="0 0 9 9"><rect width="7" height="7"/>{leads_away}</svg>')
    (run_dir / "other.txt").write_text("not to be published")
    (shown / "link.txt").symlink_to(run_dir / "other.txt")
    Image.new("RGB", (20, 10)).save(shown / "images.png")
    return run_dir


@contextmanager
def page_of(report: Any, browser: "Browser", place: Path, *runs: Path, **options: Any) -> Iterator["Page"]:
    """Write the page of some runs, and open it: it may ask for nothing else."""
    file = place / "report.html"
    report.write_page(runs, file)
    with opened(browser, file.as_uri(), (file.as_uri(), "data:"), **{"viewport": DESK, **options}) as page:
        yield page


def texts(page: "Page", chosen: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(chosen).all_inner_texts()]


def cards(page: "Page") -> dict[str, str]:
    return {
        title: " ".join(rest) for title, *rest in (text.split("\n") for text in page.locator(".card").all_inner_texts())
    }


def chart(page: "Page", metric: str) -> Any:
    return page.locator(f"figure[data-metric='{metric}']")


def axis(page: "Page", metric: str, name: str) -> list[float]:
    """Return the ends of an axis."""
    found = f"(({{u}}) => [u.scales.{name}.min, u.scales.{name}.max])(charts.find(each => each.metric === '{metric}'))"
    ends: list[float] = page.evaluate(found)
    return ends


def curves(page: "Page", metric: str) -> dict[str, list[Any]]:
    """Return what is drawn: points by the kind of a curve."""
    of_metric = f"charts.find(each => each.metric === '{metric}')"
    found = f"{of_metric}.lines.map(line => [labelOf(line.curve), line.xs, line.values])"
    return {label: [*zip(xs, values, strict=True)] for label, xs, values in page.evaluate(found)}


def test_the_page_of_a_run_has_its_numbers_options_and_what_was_shown(
    report: Any, browser: "Browser", whole_run: Path, tmp_path: Path
) -> None:
    with page_of(report, browser, tmp_path, whole_run) as page:
        assert texts(page, "h1, #state") == [whole_run.name, "done"]
        assert cards(page) | {"time": ""} == {
            "best validation accuracy": "0.875 at step 300, epoch 3",
            "test accuracy": "0.75 with the best weights",
            "trained": "400 steps epoch 4",
            "time": "",
            "samples": "3.2K 3,200 in all",
            "tokens": "320K 320,000 in all",
            "median speed": "9/s samples, all devices",
            "commit": "0123456789ab",
        }
        assert cards(page)["time"].startswith("6 min 40 s since"), "without the pause"
        assert "failed at step 500, resumed at step 200" in page.inner_text("#runs")
        expected = [(each["step"], float(f"{each['train/loss']:.6g}")) for each in records(400) if "lr" in each]
        drawn = curves(page, "loss")
        assert [(x, value) for x, value in drawn["training"]] == expected
        assert {label: len(points) for label, points in drawn.items() if label != "training"} == {
            "training, over an epoch": 4,
            "validation": 4,
            "other": 4,
        }
        assert texts(page, "figure[data-shown] b") == ["bars", "images", "text"]
        assert page.inner_text("figure[data-shown=text] pre") == HOSTILE
        assert page.locator("figure[data-shown=images] img").evaluate("image => image.naturalWidth") == 20
        assert texts(page, "#options .scroll >> nth=0 >> tbody tr") == ["--lr 0.1"]
        assert not page.get_by_text("--seed").is_visible()
        page.get_by_text("All 3 options").click()
        assert page.get_by_text("--seed").is_visible()


STATES: dict[str, tuple[dict[str, Any] | None, int | None, str, str]] = {
    "stopped": (
        {"event": "stopped"},
        75,
        "elsewhere",
        "Stopped after step 400. Start again with the same command and --resume.",
    ),
    "diverged": ({"event": "diverged", "why": f"look {HOSTILE}"}, 65, "elsewhere", f"look {HOSTILE}"),
    "failed": ({"event": "failed", "why": "TypeError: no"}, None, "elsewhere", "TypeError: no"),
    "killed": (None, None, platform.node(), "Killed after step 400: no process holds its folder"),
    "silent": (None, None, "elsewhere", "No record since "),
}


@pytest.mark.parametrize("state", STATES)
def test_the_page_says_how_a_run_ended_and_why(state: str, report: Any, browser: "Browser", tmp_path: Path) -> None:
    end, code, host, why = STATES[state]
    run_dir = write_run(tmp_path / "run", end, host=host)
    if code:
        write_result(run_dir, code)
    with page_of(report, browser, tmp_path, run_dir) as page:
        assert page.inner_text("#state") == state
        assert page.inner_text("#notes").startswith(why)
        assert (
            cards(page)["best validation accuracy"] == "0.875 at step 300, epoch 3"
        ), "also if only the records have it"


def test_charts_have_one_crosshair_and_one_zoom(
    report: Any, browser: "Browser", whole_run: Path, tmp_path: Path
) -> None:
    with page_of(report, browser, tmp_path, whole_run, has_touch=True) as page:
        at = {metric: chart(page, metric).locator(".at") for metric in ("loss", "accuracy", "lr")}
        box = chart(page, "loss").locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
        assert {each.inner_text() for each in at.values()} == {"step 200"}
        assert "training 1.127" in texts(page, "figure[data-metric=loss] .values")[0]
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 3 / 4, box["y"] + 50, steps=3)
        page.mouse.up()
        assert axis(page, "loss", "x") == axis(page, "lr", "x") == pytest.approx([200, 300], abs=3)
        page.mouse.dblclick(box["x"] + 50, box["y"] + 50)
        assert axis(page, "lr", "x") == [0, 400]

        page.mouse.move(0, 0)  # the focus scrolls the page, and a pointer that a chart leaves hides the crosshair
        chart(page, "lr").locator(".plot").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert at["loss"].inner_text() == at["lr"].inner_text() == "step 399"
        page.keyboard.press("+")
        assert axis(page, "loss", "x") == [299, 400]
        assert at["loss"].inner_text() == "step 399"
        page.keyboard.press("Escape")
        assert axis(page, "loss", "x") == [0, 400]

        page.touchscreen.tap(box["x"] + box["width"] / 4, box["y"] + 50)
        assert at["accuracy"].inner_text() == "step 100"


def test_scales_and_smoothing_are_chosen_and_stay_at_a_reload(
    report: Any, browser: "Browser", whole_run: Path, tmp_path: Path
) -> None:
    with page_of(report, browser, tmp_path, whole_run) as page:
        assert axis(page, "loss", "y")[1] < 3, "without the spikes"
        assert chart(page, "loss").locator(".at").inner_text() == "2 outside"
        warm_up = [1e-3, 2e-3, 3e-3, *(3e-3 - 1e-7 * step for step in range(30)), 0]
        assert page.evaluate("values => [...outliers(values)]", warm_up) == []
        page.uncheck("[name=clip]")
        assert axis(page, "loss", "y")[1] > 1e4
        assert axis(page, "samples_per_second", "y")[0] == 0
        assert chart(page, "samples_per_second").locator(".at").inner_text() == "median 9"
        page.check("[name=log]")
        assert page.evaluate("charts.map(each => each.u.scales.y.distr)")[:2] == [3, 3]
        rough = curves(page, "loss")["training"]
        page.locator("[name=smooth]").fill("0.9")
        smooth = curves(page, "loss")["training"]
        assert max(value for _, value in smooth) < 0.2 * max(value for _, value in rough)
        page.reload()
        assert page.is_checked("[name=log]")
        assert curves(page, "loss")["training"] == smooth
        page.fill("[name=find]", "wait")
        assert texts(page, "figcaption b") == ["waiting/data", "bars", "images", "text"]


def test_the_axis_is_steps_time_or_samples(report: Any, browser: "Browser", whole_run: Path, tmp_path: Path) -> None:
    with page_of(report, browser, tmp_path, whole_run) as page:
        assert [x for x, _ in curves(page, "accuracy")["validation"]] == [100, 200, 300, 400]
        page.check("[name=x][value=time]")
        minutes = [x for x, _ in curves(page, "accuracy")["validation"]]
        assert minutes == pytest.approx([100 / 60, 200 / 60, 5, 400 / 60]), "without the pause"
        page.focus("[name=x]:checked")
        page.keyboard.press("ArrowRight")
        assert [x for x, _ in curves(page, "accuracy")["validation"]] == [800, 1600, 2400, 3200]
        assert axis(page, "lr", "x") == [0, 3200]


def test_runs_are_compared_in_colours_that_a_legend_switches(
    report: Any, browser: "Browser", whole_run: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "two", {"event": "failed", "why": "TypeError: no"}, {"lr": 0.2})
    with page_of(report, browser, tmp_path, whole_run, other) as page:
        cells = texts(page, "#runs tbody tr >> nth=1 >> th, td")
        assert cells[:5] == ["two", "failed", "0.875", "300", "400"]
        assert texts(page, "#options .scroll >> nth=0 >> tbody tr") == ["--lr 0.1 0.2"]
        assert page.inner_text("#notes") == "two: TypeError: no"
        assert texts(page, ".chip[aria-pressed=false]") == ["training, over an epoch"], "to begin with"
        colours = "charts[0].u.series.slice(1).map(each => each.stroke())"
        assert len({colour[:7] for colour in page.evaluate(colours)}) == 2
        for chip, kinds in (("two", 3), ("training, over an epoch", 4), ("training", 3), ("validation", 2)):
            page.get_by_role("button", name=chip, exact=True).click()
            assert len(curves(page, "loss")) == kinds
        page.get_by_role("button", name="two", exact=True).click()
        assert [label.split()[0] for label in curves(page, "loss")] == ["one", "one", "two", "two"]
        assert {*texts(page, ".chip[aria-pressed=false]")} == {"training", "validation"}


def test_an_open_page_follows_its_run_from_the_disk(
    report: Any, package: Package, browser: "Browser", tmp_path: Path
) -> None:
    kept = package("runtime.records").Records(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    kept.begin(0)
    kept.add(0, {"event": "started", **START})
    live, files = report.LivePage(tmp_path), ((tmp_path / "report").as_uri(), "data:")
    for step in range(1, 101):
        kept.add(step, {"train/loss": 1 / step})
    live.write(kept.thinned, {"step": 100})
    with opened(browser, (tmp_path / "report.html").as_uri(), files) as page:
        assert page.inner_text("#state") == "running"
        page.locator("#cards", has_text="100 steps").wait_for()
        page.evaluate("setZoom([50, 60])")
        for step in range(101, 201):
            kept.add(step, {"train/loss": 1 / step})
        live.write(kept.thinned, {"step": 200})
        page.locator("#cards", has_text="200 steps").wait_for(timeout=SOON)
        assert len(curves(page, "loss")["training"]) == 200
        assert axis(page, "loss", "x") == [50, 60], "the view stays"
        page.uncheck("#live")
        assert page.inner_text("#fresh") == "paused"
        page.check("#live")
        kept.add(200, {"event": "done"})
        live.write(kept.thinned, {"step": 200, "exit_code": 0})
        page.locator("#state", has_text="done").wait_for(timeout=SOON)
        assert not page.is_visible("#follow")
    with opened(browser, (tmp_path / "report.html").as_uri(), files) as page:
        assert len(curves(page, "loss")["training"]) == 200, "the page alone has it, too"


def test_a_page_whose_run_has_fallen_silent_says_so(
    report: Any, package: Package, browser: "Browser", tmp_path: Path
) -> None:
    kept = package("runtime.records").Records(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    kept.begin(0)
    for record in ({"event": "started", **START}, {"train/loss": 1.0}):
        kept.add(1, record)
    report.LivePage(tmp_path).write(kept.thinned, {"step": 1})
    page = browser.new_page()
    page.clock.install(time=time.time())
    page.goto((tmp_path / "report.html").as_uri())
    assert page.inner_text("#state") == "running"
    page.clock.fast_forward(600_000)
    page.locator("#state", has_text="silent").wait_for(timeout=SOON)
    assert re.search(r"\(10 min( \d s)? ago\): it was killed", page.inner_text("#notes"))
    page.close()


def test_a_served_page_follows_runs_for_those_who_know_its_address(
    project: Render, package: Package, browser: "Browser", tmp_path: Path
) -> None:
    other_run, run_dir = (write_run(tmp_path / name, None) for name in ("other", "live"))
    command = [sys.executable, "-m", "ddp_project.runtime.report", str(other_run), str(run_dir), "--serve"]
    with subprocess.Popen(command, cwd=project(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().strip()
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{16}/", address)
            assert found, address
            for other in ("", "x/", "report.js"):
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"http://127.0.0.1:{found[1]}/{other}")
            own = socket.gethostbyname(platform.node())
            if not own.startswith("127."):
                with pytest.raises(OSError, match="refused"):
                    socket.create_connection((own, int(found[1])), timeout=5)
            with opened(browser, address, (address, "data:")) as page:
                rows = page.locator("#runs tbody tr")
                rows.nth(1).get_by_text("400", exact=True).wait_for()
                for cut, last in ((400, 444), (200, 333)):  # another start begins after an earlier step
                    kept = package("runtime.records").Records(run_dir)
                    kept.begin(cut)
                    kept.add(last, {"train/loss": 1.0})
                    rows.nth(1).get_by_text(str(last), exact=True).wait_for(timeout=SOON)
            shutil.rmtree(run_dir)
            assert re.findall('"name":"([a-z]+)","options"', urlopen(address).read().decode()) == ["other"]
            shutil.rmtree(other_run)
            with pytest.raises(HTTPError, match="404"):
                urlopen(address)
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_a_million_records_are_a_small_page_at_once(
    report: Any, package: Package, browser: "Browser", tmp_path: Path
) -> None:
    run_dir = tmp_path / HOSTILE.replace("/", "")
    run_dir.mkdir()
    names = (
        "train/loss",
        "train/accuracy",
        "lr",
        "grad_norm",
        "device/mfu",
        "waiting/data",
        "waiting/saves",
        "samples",
    )
    values = ", ".join(f'"{name}": %.15f' for name in names)
    with open(run_dir / "metrics.jsonl", "w") as file:
        print(json.dumps({"step": 0, "time": 0, "event": "started", **START}), file=file)
        for step in range(1, 1_000_001):
            print(f'{{"step": {step}, "time": {step}, {values % ((step / 7,) * len(names))}}}', file=file)
        file.write('{"step": 1000000, "time": 1000001, "train/<script>window.harmed=2</script>": 5}\nhello <script>')
    (run_dir / "config.json").write_text("{}")
    recorded = package("runtime.records").thinned(run_dir)
    live, took = report.LivePage(run_dir), []
    for _ in range(2):
        began = time.process_time()
        live.write(recorded, {"step": 1_000_000})
        took.append(time.process_time() - began)
    assert min(took) < 1
    assert (run_dir / "report.html").stat().st_size < 2_000_000
    assert live.every >= report.SHARE * min(took) / 2, "it costs a five-hundredth of the time"
    address = (run_dir / "report.html").as_uri()
    with opened(browser, address, (address, address.replace(".html", ".js"), "data:")) as page:
        assert texts(page, "figcaption b")[:3] == ["loss", "accuracy", "<script>window.harmed=2</script>"]
        points = curves(page, "loss")["training"]
        assert (points[0][0], points[-1][0], len(points) > 900) == (1, 1_000_000, True)


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_page_is_accessible_in_both_schemes(
    number: int, scheme: str, viewport: Any, report: Any, browser: "Browser", whole_run: Path, axe: str, tmp_path: Path
) -> None:
    runs = [whole_run, write_run(tmp_path / "two", {"event": "failed", "why": "TypeError: no"}, {"lr": 0.2})]
    with page_of(report, browser, tmp_path, *runs[:number], color_scheme=scheme, viewport=viewport) as page:
        page.locator("summary").click()
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        for chosen in ("h1", "p", "figcaption b", "td", ".chip"):
            assert page.locator(chosen).first.evaluate(CONTRAST) >= 4.5, f"{chosen} is hard to read"
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(15, 18, 22)"
        assert dark == (scheme == "dark")
        stroke = "charts[0].u.series[1].stroke()"
        before = page.evaluate(stroke)
        page.emulate_media(color_scheme="light" if dark else "dark")
        wait_until(lambda: page.evaluate(stroke) != before)


def test_a_page_asks_nobody_and_runs_no_script_but_its_own(
    report: Any, browser: "Browser", whole_run: Path, tmp_path: Path
) -> None:
    report.write_page([whole_run], tmp_path / "report.html")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        page.evaluate(
            """address => {
                const script = document.createElement("script");
                script.textContent = "window.harmed = 1";
                document.head.append(script);
                const image = `<img src="${address}" onerror="window.harmed = 2">`;
                document.body.insertAdjacentHTML("beforeend", image);
                fetch(address).catch(() => (new Image().src = address)); // not awaited: nobody answers
            }""",
            f"http://127.0.0.1:{listening.getsockname()[1]}/",
        )
        page.wait_for_timeout(500)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert page.evaluate("window.harmed") is None
    assert len(re.findall("<script", (tmp_path / "report.html").read_text())) == 2
    assert "not to be published" not in (tmp_path / "report.html").read_text()
    assert "Permission is hereby granted, free of charge" in (tmp_path / "report.html").read_text()
    page.close()
