"use strict";
const WIDTH = 440, HEIGHT = 230, LEFT = 56, RIGHT = 430, TOP = 8, BOTTOM = 206;
const byId = (id) => document.getElementById(id);
const { runs, groups } = JSON.parse(byId("data").textContent);
const [search, smoothing, log] = ["search", "smoothing", "log"].map(byId);
const charts = [];
let xRange = [0, 1];

// Text goes in as text, never as markup.
function element(tag, attributes = {}, ...children) {
  const isDrawing = ["svg", "path", "line", "text", "circle"].includes(tag);
  const space = isDrawing ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function format(value) {
  const rounded = Number(value.toPrecision(6)), size = Math.abs(rounded);
  if (size === 0 || (size >= 1e-3 && size < 1e6)) return String(rounded);
  return rounded.toExponential().replace("e+", "e");
}

function ticks(low, high, count) {
  const least = (high - low) / count, power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
  const result = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) result.push(i * step);
  return result;
}

function logTicks(low, high) {
  if (high - low < 2) return ticks(10 ** low, 10 ** high, 6).filter((value) => value > 0);
  const step = Math.ceil((high - low) / 5), result = [];
  for (let power = Math.ceil(low); power <= high; power += step) result.push(10 ** power);
  return result;
}

// An average whose weights fall by 1/e within `length` iterations, however close the points are.
function smooth([xs, ys], length) {
  let sum = 0, weight = 0, before = xs[0];
  const averages = ys.map((y, i) => {
    if (y === null) return null;
    const decay = Math.exp(Math.min(before - xs[i], 0) / length);
    before = xs[i];
    sum = sum * decay + y;
    weight = weight * decay + 1;
    return sum / weight;
  });
  return [xs, averages];
}

const isDrawn = (y) => y !== null && (y > 0 || !log.checked);

function path([xs, ys], { x, y }, attributes) {
  let line = "", pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (isDrawn(ys[i])) {
      line += `${pen}${x(xs[i]).toFixed(1)},${y(ys[i]).toFixed(1)}`;
      const isAlone = pen === "M" && !(i + 1 < xs.length && isDrawn(ys[i + 1]));
      if (isAlone) line += "m-3,0h6m-3,-3v6";  // no line would be seen
      pen = "L";
    } else pen = "M";
  }
  return element("path", { d: line, ...attributes });
}

function scaleOf(curves) {
  let low = Infinity, high = -Infinity;
  for (const { points } of curves)
    for (const value of points[1])
      if (isDrawn(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  if (low > high) return null;
  const change = log.checked ? Math.log10 : (value) => value;
  [low, high] = [change(low), change(high)];
  const pad = 0.05 * (high - low || Math.abs(high) || 1);
  [low, high] = [low - pad, high + pad];
  return {
    x: (value) => LEFT + ((value - xRange[0]) / (xRange[1] - xRange[0])) * (RIGHT - LEFT),
    y: (value) => BOTTOM - ((change(value) - low) / (high - low)) * (BOTTOM - TOP),
    yTicks: log.checked ? logTicks(low, high) : ticks(low, high, 6),
  };
}

function draw(chart) {
  chart.isDirty = false;
  hideValues(chart);
  chart.curves = chart.metric.curves
    .map((curve, i) => ({ ...curve, run: runs[i] }))
    .filter((curve) => curve.points && curve.run.box.checked);
  chart.scale = scaleOf(chart.curves);
  if (!chart.scale) {
    const why = log.checked ? "no positive value" : "no value";
    chart.svg.replaceChildren(
      element("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, why));
    return;
  }
  const { x, y, yTicks } = chart.scale;
  const parts = [element("line", { x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM }),
    element("text", { x: 0, y: BOTTOM + 17 }, "iteration")];
  for (const value of yTicks)
    parts.push(
      element("line", { x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value) }),
      element("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  for (const value of ticks(...xRange, 5))
    parts.push(
      element("line", { x1: x(value), x2: x(value), y1: BOTTOM, y2: BOTTOM + 4 }),
      element("text", { x: x(value), y: BOTTOM + 17, "text-anchor": "middle" }, format(value)));
  const length = (smoothing.value / 100) * (xRange[1] - xRange[0]);
  for (const { points, means, run } of chart.curves) {
    const style = { stroke: run.color, "stroke-dasharray": run.dash };
    if (length) {
      parts.push(path(points, chart.scale, { stroke: run.color, class: "raw" }));
      parts.push(path(smooth(means[0].length ? means : points, length), chart.scale, style));
    } else parts.push(path(points, chart.scale, style));
  }
  chart.svg.replaceChildren(...parts);
}

function refresh() {
  const ranges = runs.filter((run) => run.box.checked).map((run) => run.range);
  xRange = [Math.min(...ranges.map((r) => r[0])), Math.max(...ranges.map((r) => r[1]))];
  if (!(xRange[0] < xRange[1])) xRange = [(xRange[0] || 0) - 1, (xRange[0] || 0) + 1];
  const percent = Number(smoothing.value);
  byId("smoothed").value = percent ? `over ${percent} % of the axis` : "off";
  for (const chart of charts) {
    chart.isDirty = true;
    if (chart.isVisible) draw(chart);
  }
}

// --- the values at an iteration: under the pointer, or by arrow keys ---
function nearest({ points: [xs, ys], run }, iteration) {
  let best = null;
  for (let i = 0; i < xs.length; i++) {
    const distance = Math.abs(xs[i] - iteration);
    const isNearer = !best || distance < best.distance;
    if (isDrawn(ys[i]) && isNearer) best = { run, x: xs[i], y: ys[i], distance };
  }
  return best;
}

function showValues(chart, iteration) {
  hideValues(chart);
  const found = chart.curves.map((curve) => nearest(curve, iteration)).filter(Boolean);
  if (!found.length) return;
  chart.at = found.reduce((one, other) => (other.distance < one.distance ? other : one)).x;
  const { x, y } = chart.scale, { values, figure, svg } = chart, place = x(chart.at);
  svg.append(element("line", { x1: place, x2: place, y1: TOP, y2: BOTTOM, class: "cursor" }));
  values.replaceChildren();
  for (const one of found) {
    const { color: fill, name } = one.run;
    const texts = { span: name, b: format(one.y), small: `at ${one.x}` };
    svg.append(element("circle", { cx: x(one.x), cy: y(one.y), r: 3.5, fill, class: "cursor" }));
    values.append(element("div", {}, element("i", { style: `background:${fill}` }),
      ...Object.entries(texts).map(([tag, text]) => element(tag, {}, text))));
  }
  values.hidden = false;
  const width = values.offsetWidth, room = figure.clientWidth, at = (place / WIDTH) * room;
  const left = at < room / 2 ? at + 8 : at - width - 8;
  values.style.left = `${Math.max(0, Math.min(left, room - width))}px`;
}

function hideValues(chart) {
  chart.svg.querySelectorAll(".cursor").forEach((part) => part.remove());
  chart.values.hidden = true;
}

function stepWith(chart, event) {
  if (event.key === "Escape") return hideValues(chart);
  if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || !chart.scale) return;
  event.preventDefault();
  const longest = chart.curves.reduce((a, b) => (b.points[0].length > a.points[0].length ? b : a));
  const xs = [...new Set(longest.points[0].filter((_, i) => isDrawn(longest.points[1][i])))];
  const now = chart.values.hidden ? -1 : xs.indexOf(nearest(longest, chart.at).x);
  const step = { ArrowLeft: Math.max(now - 1, 0), ArrowRight: Math.min(now + 1, xs.length - 1) };
  showValues(chart, xs[step[event.key] ?? (event.key === "Home" ? 0 : xs.length - 1)]);
}

// --- building the page ---
function addChart(metric, grid) {
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img",
    "aria-label": `${metric.name} by iteration; arrow keys tell values` });
  const values = element("div", { class: "values", role: "status", hidden: "" });
  const figure = element("figure", {}, element("figcaption", {}, metric.name), svg, values);
  const chart = { metric, figure, svg, values, curves: [] };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (RIGHT - LEFT);
    showValues(chart, xRange[0] + share * (xRange[1] - xRange[0]));
  });
  svg.addEventListener("pointerleave", () => hideValues(chart));
  svg.addEventListener("blur", () => hideValues(chart));
  svg.addEventListener("keydown", (event) => stepWith(chart, event));
  grid.append(figure);
  charts.push(chart);
}

for (const run of runs) {
  run.range = [Infinity, -Infinity];
  run.box = element("input", { type: "checkbox", checked: "" });
  run.box.addEventListener("change", refresh);
  const line = element("line", { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-dasharray": run.dash,
    style: `stroke:${run.color};stroke-width:3` });
  const sample = element("svg", { viewBox: "0 0 26 10" }, line);
  byId("legend").append(element("label", {}, run.box, sample, run.name));
}
for (const group of groups) {
  const title = `${group.name || "general"} (${group.metrics.length})`;
  const grid = element("div", { class: "grid" });
  group.details = element("details", { open: "" }, element("summary", {}, title), grid);
  byId("charts").append(group.details);
  for (const metric of group.metrics) {
    addChart(metric, grid);
    metric.curves.forEach((curve, i) => {
      const xs = curve ? curve.points[0] : [], [first, last] = runs[i].range;
      if (curve) runs[i].range = [Math.min(first, xs[0]), Math.max(last, xs.at(-1))];
    });
  }
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  const isLeftOut = (name) => !words.every((word) => name.toLowerCase().includes(word));
  for (const { figure, metric } of charts) figure.hidden = isLeftOut(metric.name);
  for (const { details, metrics } of groups)
    details.hidden = metrics.every(({ name }) => isLeftOut(name));
  for (const row of byId("values").tBodies[0].rows) row.hidden = isLeftOut(row.dataset.metric);
  byId("nothing").hidden = !charts.length || groups.some(({ details }) => !details.hidden);
}

function sortBy(column, head) {
  const isUp = head.getAttribute("aria-sort") !== "ascending", body = byId("values").tBodies[0];
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  const isText = column < 2;
  const key = ({ cells: { [column]: cell } }) =>
    isText ? cell.textContent : Number(cell.dataset.value);
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a !== a || b !== b) return (a !== a) - (b !== b);  // what has no value comes last
    return (isUp ? 1 : -1) * (isText ? a.localeCompare(b) : a - b);
  });
  body.append(...rows);
}

document.querySelectorAll("#values thead tr:last-child th").forEach((head, column) =>
  head.firstChild.addEventListener("click", () => sortBy(column, head)));
byId("controls").addEventListener("submit", (event) => event.preventDefault());
search.addEventListener("input", filter);
smoothing.addEventListener("input", refresh);
log.addEventListener("change", refresh);
addEventListener("beforeprint", () => charts.filter((chart) => chart.isDirty).forEach(draw));
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const chart = charts.find(({ figure }) => figure === target);
    chart.isVisible = isIntersecting;
    if (isIntersecting && chart.isDirty) draw(chart);
  }
}, { rootMargin: "1000px" });
filter();
refresh();
for (const { figure } of charts) observer.observe(figure);
