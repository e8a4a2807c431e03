"""The script of the page, driven in a real browser where one is installed."""

import json
import math
import re
import shutil
import subprocess
from html import unescape

import pytest

from engine.report import build_page, read_runs

BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), "")
NAME = "</script><script>throw 1</script>"

# Plays a user, and leaves what this user sees as JSON in the page.
USER = """<script>
const see = {}, all = (selector) => [...document.querySelectorAll(selector)];
addEventListener("error", (event) => { see.error = event.message; });
const svg = document.querySelector("figure svg"), values = svg.nextSibling;
const lines = () => svg.querySelectorAll("path").length;
const drawing = () => svg.innerHTML;
const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
const point = (kind, clientX) => svg.dispatchEvent(new PointerEvent(kind, { clientX }));
const told = () => (values.hidden ? "" : values.textContent);
const change = (id, key, value, kind) => {
  const input = document.getElementById(id);
  input[key] = value;
  input.dispatchEvent(new Event(kind));
};
const rows = () => all("#values tbody tr:not([hidden]) th").map((head) => head.textContent);
const play = () => {
  if (!lines()) return setTimeout(play, 100);  // charts are drawn when they come into view
  see.captions = all("figcaption").map((one) => one.textContent);
  see.lines = lines();
  const asDrawn = drawing();
  point("pointermove", svg.getBoundingClientRect().right - 9);
  see.hover = told();
  point("pointerleave", 0);
  see.left = told();
  press("Home");
  press("ArrowRight");
  see.keys = told();
  press("Escape");
  all("#legend input")[1].click();
  see.withoutSecond = lines();
  all("#legend input")[0].click();
  see.withoutAny = svg.textContent;
  all("#legend input").forEach((one) => one.click());
  change("smoothing", "value", 10, "input");
  see.smoothed = [lines(), document.getElementById("smoothed").textContent];
  change("smoothing", "value", 0, "input");
  see.asBefore = drawing() === asDrawn;
  change("log", "checked", true, "change");
  see.logDiffers = drawing() !== asDrawn;
  see.gaps = drawing().match(/M/g).length;
  change("search", "value", "ACC", "input");
  see.found = [all("figure:not([hidden])").length, rows()];
  change("search", "value", "", "input");
  const best = all("#values thead tr:last-child button")[3];
  best.click();
  see.upwards = rows();
  best.click();
  see.downwards = rows();
  document.body.append(element("pre", { id: "seen" }, JSON.stringify(see)));
};
play();
</script>"""


@pytest.fixture
def seen(make_run, tmp_path):
    rows = [
        {"iteration": at, "loss": None if at in (40, 41) else math.exp(-at / 50), "acc": at}
        for at in range(100)
    ]
    folders = [make_run("one", [*rows, {"iteration": 100, NAME: 0.5}]), make_run("two", rows[:50])]
    page = tmp_path / "page.html"
    page.write_text(build_page(read_runs(folders)) + USER)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    command += ["--run-all-compositor-stages-before-draw"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=100
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(unescape(found[1]))


@pytest.mark.skipif(not BROWSER, reason="needs a Chromium")
def test_charts_answer_to_pointer_keys_and_controls(seen):
    assert seen == {
        "captions": ["loss", "acc", NAME],
        "lines": 2,
        "hover": "one0.138069at 99two0.375311at 49",
        "left": "",
        "keys": "one0.980199at 1two0.980199at 1",
        "withoutSecond": 1,
        "withoutAny": "no value",
        "smoothed": [4, "over 10 % of the axis"],
        "asBefore": True,
        "logDiffers": True,
        "gaps": 4,
        "found": [1, ["acc"]],
        "upwards": ["loss", NAME, "acc"],
        "downwards": ["acc", NAME, "loss"],
    }
