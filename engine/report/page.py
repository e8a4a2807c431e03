"""The page: one HTML file that needs nothing else, neither network nor server."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from engine.report.curves import LOWER_IS_BETTER, WITHOUT_BEST, Curve, Point, is_lower_better
from engine.report.runs import Run

# Okabe and Ito's, which all kinds of colour vision tell apart; those that are pale on white last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#808080", "#E69F00", "#56B4E9")
DASHES = ("", "7 3", "2 3")  # of the first seven runs, the second and the third


def build_page(runs: Sequence[Run]) -> str:
    """The page of one run, or of several side by side."""
    part = {
        name: (files(__package__) / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    title = " · ".join(run.name for run in runs) if len(runs) < 5 else f"{len(runs)} runs"
    data = json.dumps(_data(runs), separators=(",", ":"), allow_nan=False)
    return Template(part["page.html"]).substitute(
        title=escape(title),
        css=part["page.css"],
        js=part["page.js"],
        runs="\n".join(_heading(run, place) for place, run in enumerate(runs)),
        table=_table_of_values(runs),
        lower=", ".join(LOWER_IS_BETTER),
        without=" and ".join(WITHOUT_BEST),
        config=_config([run for run in runs if run.config]),
        data=data.replace("<", "\\u003c"),  # without it, nothing ends a script element
    )


def _data(runs: Sequence[Run]) -> dict[str, Any]:
    """What the script draws: the style of each run, and by group and metric a curve of each."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in _metrics(runs):
        curves = [_drawing(run.curves.get(name)) for run in runs]
        groups.setdefault(_group(name), []).append({"name": name, "curves": curves})
    styles = [{"name": run.name, **_style(place)} for place, run in enumerate(runs)]
    return {
        "runs": styles,
        "groups": [{"name": name, "metrics": metrics} for name, metrics in groups.items()],
    }


def _metrics(runs: Sequence[Run]) -> list[str]:
    """All names: groups that have a loss first, and in a group losses first."""
    names = {name for run in runs for name in run.curves}
    with_loss = {_group(name) for name in names if "loss" in name}
    return sorted(names, key=lambda n: (_group(n) not in with_loss, _group(n), "loss" not in n, n))


def _group(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _drawing(curve: Curve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {"points": _columns(curve.points), "means": _columns(curve.means)}


def _columns(points: list[Point]) -> list[list[float | None]]:
    return [[iteration for iteration, _ in points], [value for _, value in points]]


def _style(place: int) -> dict[str, str]:
    turn, color = divmod(place, len(COLORS))
    return {"color": COLORS[color], "dash": DASHES[turn % len(DASHES)]}


def _heading(run: Run, place: int) -> str:
    facts = "".join(f"<dt>{fact}</dt><dd>{escape(text)}</dd>" for fact, text in run.facts.items())
    swatch = f'<i style="background:{_style(place)["color"]}"></i>'
    return f"<article><h2>{swatch}{escape(run.name)}</h2><dl>{facts}</dl></article>"


def _table_of_values(runs: Sequence[Run]) -> str:
    names = "".join(f'<th colspan="2" scope="colgroup">{escape(run.name)}</th>' for run in runs)
    columns = "".join(map(_sortable, ["metric", "best is", *["last", "best"] * len(runs)]))
    rows = []
    for name in _metrics(runs):
        curves = [run.curves.get(name) for run in runs]
        direction = "" if name in WITHOUT_BEST else "min" if is_lower_better(name) else "max"
        bests = [curve.best for curve in curves if curve and curve.best]
        values = [value for _, value in bests if value is not None] if len(runs) > 1 else []
        winner = (min if is_lower_better(name) else max)(values, default=None)
        cells = "".join(
            _cell(curve.last) + _cell(curve.best, winner) if curve else "<td></td><td></td>"
            for curve in curves
        )
        title = f'<th scope="row">{escape(name)}</th><td>{direction}</td>'
        rows.append(f'<tr data-metric="{escape(name)}">{title}{cells}</tr>')
    head = f'<thead><tr><td colspan="2"></td>{names}</tr><tr>{columns}</tr></thead>'
    return f'<table id="values">{head}<tbody>{"".join(rows)}</tbody></table>'


def _sortable(title: str) -> str:
    return f'<th scope="col"><button type="button">{title}</button></th>'


def _cell(point: Point | None, winner: float | None = None) -> str:
    if point is None:
        return "<td></td>"
    iteration, value = point
    if value is None:
        return "<td>not finite</td>"
    text = f"<b>{value:.6g}</b>" if value == winner else f"{value:.6g}"
    return f'<td data-value="{value}">{text} <small>at {iteration}</small></td>'


def _config(runs: Sequence[Run]) -> str:
    """The settings in which runs differ; of one run, all in a folded section."""
    if not runs:
        return "<p>There is no config.yaml.</p>"
    if len(runs) == 1:
        name, text = escape(runs[0].name), escape(runs[0].config)
        return f"<details><summary>config.yaml of {name}</summary><pre>{text}</pre></details>"
    rows = []
    for key in sorted({key for run in runs for key in run.settings}):
        values = [repr(run.settings[key]) if key in run.settings else "–" for run in runs]
        if len(set(values)) > 1:
            cells = "".join(f"<td>{escape(value)}</td>" for value in values)
            rows.append(f'<tr><th scope="row">{escape(key)}</th>{cells}</tr>')
    if not rows:
        return "<p>No setting differs.</p>"
    names = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    head = f'<thead><tr><th scope="col">setting</th>{names}</tr></thead>'
    return f'<table id="differences">{head}<tbody>{"".join(rows)}</tbody></table>'
