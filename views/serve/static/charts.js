// Lets the drawn charts answer: values at the pointer or the arrow keys, a drag over steps or time shows that part, a
// cell of lateness opens its step. All ends in addresses that work without it. Charts carry their values in data-chart.
"use strict";
const LEAST_DRAG = 6, TIP_GAP = 14;
const tip = document.createElement("div"), marked = document.createElement("div");
tip.className = "tip"; tip.setAttribute("role", "status"); marked.className = "marked";
tip.hidden = marked.hidden = true;
document.body.append(marked, tip);
document.documentElement.classList.add("charts");
const read = new WeakMap();
let at = null, drag = null, tapped = null, isDragged = false;

function valuesOf(chart) {
  if (!read.has(chart)) read.set(chart, JSON.parse(chart.dataset.chart));
  return read.get(chart);
}

// The drawing's own plane in pixels of the screen: Vega's first background is that of the plot.
function plane(chart) { return [...chart.querySelectorAll("path.background")].map((part) => part.getBoundingClientRect()).find((box) => box.width > 0); }

function nearest(numbers, value) {
  let best = 0;
  numbers.forEach((number, place) => { if (Math.abs(number - value) < Math.abs(numbers[best] - value)) best = place; });
  return best;
}

function positionsOf(values) { return values.kind === "cells" ? values.bins : values.rows.map((row) => row[0]); }

// The column, and row of a heat map, at a place of the screen; null beside the plot.
function placeAt(chart, x, y) {
  const values = valuesOf(chart), box = plane(chart);
  if (!box || x < box.left || x > box.right || y < box.top || y > box.bottom) return null;
  const [begin, end] = values.domain, value = begin + (x - box.left) / box.width * (end - begin);
  const column = nearest(positionsOf(values), value - values.width / 2);
  const row = values.kind === "cells" ? Math.min(values.ranks.length - 1, Math.floor((y - box.top) / box.height * values.ranks.length)) : 0;
  return { chart, column, row };
}

function number(value) { return value === null ? "not known" : value.toLocaleString("en", { maximumSignificantDigits: 4 }); }

function span(name, first, last) { return first >= last ? `${name} ${first}` : `${name}s ${first} to ${last}`; }

function titleOf(values, from, to) {
  if (values.titles) return values.titles[to];
  const [first, last] = [from, to].sort((a, b) => a - b).map((column) => positionsOf(values)[column]);
  if (values.axis === "step") return span("step", first, last + values.width - 1);
  return first === last ? `${number(first)} ${values.axis}` : `${number(first)} to ${number(last)} ${values.axis}`;
}

// The values at a place; of a part only its extent.
function textOf({ chart, column, row }, from) {
  const values = valuesOf(chart), title = titleOf(values, from, column);
  if (values.kind === "cells") return `${span("rank", ...values.ranks[row])}\n${title}\n${number(values.rows[row][column])} ${values.unit}`;
  if (from !== column) return `only ${title}`;
  return [title, ...values.names.map((name, place) => `${name}: ${number(values.rows[column][place + 1])} ${values.unit}`)].join("\n");
}

// The address of a cell, or of a step of a strip: the step, of its steps, in which a rank of it came latest.
function addressOf({ chart, column, row }) {
  const values = valuesOf(chart), first = positionsOf(values)[column], query = new URLSearchParams(values.query);
  if (values.kind === "cells" || values.width > 1) query.set("last", first + values.width - 1);
  if (values.kind === "cells") {
    const [rank, last] = values.ranks[row];
    query.set("rank", rank);
    if (last > rank) query.set("last_rank", last);
  }
  return `${values.path}${first}?${query}`;
}

function hasParts(values) { return values.kind === "lines" && Boolean(values.times || values.path); }

// The page of a part: of a time, or of the steps of a strip.
function partAddress(chart, from, to) {
  const values = valuesOf(chart), address = new URL(location.href), [low, high] = [Math.min(from, to), Math.max(from, to)];
  const part = values.times ? { from: values.times[low][0], to: values.times[high][1] } : { from_step: values.rows[low][0], to_step: values.rows[high][0] + values.width - 1 };
  for (const name in part) address.searchParams.set(name, part[name]);
  address.hash = "";
  return address.href;
}

function showTip(text, x, y) {
  tip.textContent = text; tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + TIP_GAP, innerWidth - width - 4))}px`;
  tip.style.top = `${y + TIP_GAP + height > innerHeight ? Math.max(4, y - TIP_GAP - height) : y + TIP_GAP}px`;
}

// Marks columns from..to, of one row in a heat map, and returns the middle of the last.
function mark({ chart, column, row }, from = column) {
  const values = valuesOf(chart), box = plane(chart), [begin, end] = values.domain, positions = positionsOf(values);
  const toX = (value) => box.left + (Math.max(begin, Math.min(value, end)) - begin) / (end - begin) * box.width;
  const isCell = values.kind === "cells", height = isCell ? box.height / values.ranks.length : box.height;
  const left = toX(positions[Math.min(from, column)]), right = toX(positions[Math.max(from, column)] + values.width);
  Object.assign(marked.style, { left: `${left}px`, top: `${box.top + (isCell ? row * height : 0)}px`, width: `${Math.max(1, right - left)}px`, height: `${height}px` });
  marked.hidden = false;
  return [right, box.top + (isCell ? (row + 1) * height : box.height / 3)];
}

function show(place, x, y, from = place.column) {
  const middle = mark(place, from);
  showTip(textOf(place, from), x ?? middle[0], y ?? middle[1]);
  at = { ...place, from };
  document.body.dataset.charts = "1"; // the page is not replaced meanwhile
}

function clear() { at = drag = null; tip.hidden = marked.hidden = true; delete document.body.dataset.charts; }

// A mark without values of its own has the text that Vega or the drawing gives it for screen readers.
function labelOf(target) {
  const drawn = target.closest?.(".wide svg [aria-roledescription]");
  return drawn && !["group mark container", "title", "axis", "legend"].includes(drawn.getAttribute("aria-roledescription")) ? drawn.getAttribute("aria-label") : null;
}

document.addEventListener("pointermove", (event) => {
  if (drag) {
    const box = plane(drag.chart), x = Math.max(box.left, Math.min(event.clientX, box.right));
    const place = placeAt(drag.chart, x, box.top + 1);
    if (place) { drag.to = place.column; show(place, event.clientX, event.clientY, drag.column); }
    return;
  }
  const chart = event.target.closest?.("[data-chart]"), place = chart && placeAt(chart, event.clientX, event.clientY);
  if (place) return show(place, event.clientX, event.clientY);
  const label = labelOf(event.target);
  if (!label) return clear();
  marked.hidden = true; at = null; document.body.dataset.charts = "1";
  showTip(label.replaceAll("; ", "\n"), event.clientX, event.clientY);
});

document.addEventListener("pointerdown", (event) => {
  const chart = event.target.closest?.("[data-chart]"), place = chart && placeAt(chart, event.clientX, event.clientY);
  if (!place || event.button || event.pointerType === "touch" || !hasParts(valuesOf(chart))) return;
  event.preventDefault();
  drag = { ...place, x: event.clientX, to: place.column };
});

document.addEventListener("pointerup", (event) => {
  const done = drag;
  drag = null;
  isDragged = Boolean(done) && Math.abs(event.clientX - done.x) >= LEAST_DRAG; // a click follows, which is none
  if (isDragged) location.assign(partAddress(done.chart, done.column, done.to));
});

document.addEventListener("click", (event) => {
  const chart = event.target.closest?.("[data-chart]"), place = chart && placeAt(chart, event.clientX, event.clientY);
  if (isDragged) return isDragged = false;
  if (!place) return event.pointerType === "touch" ? clear() : undefined;
  const isSame = tapped && tapped.chart === chart && tapped.column === place.column && tapped.row === place.row;
  tapped = place;
  // A finger hides what it touches: its first tap shows the cell, the second opens it.
  if (!valuesOf(chart).path || (event.pointerType === "touch" && !isSame)) return show(place, event.clientX, event.clientY);
  if (event.ctrlKey || event.metaKey) open(addressOf(place), "_blank", "noopener"); else location.assign(addressOf(place));
});

document.addEventListener("keydown", (event) => {
  const chart = document.activeElement;
  if (event.key === "Escape") return clear();
  if (!chart?.dataset?.chart || event.ctrlKey || event.metaKey || event.altKey) return;
  const values = valuesOf(chart), moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const here = at?.chart === chart ? at : null, isCells = values.kind === "cells";
  if (event.key === "Enter" && here && values.path && (isCells || here.from === here.column)) return location.assign(addressOf(here));
  if (event.key === "Enter" && here && hasParts(values)) return location.assign(partAddress(chart, here.from, here.column));
  if (!moves || (!isCells && moves[1])) return;
  event.preventDefault();
  const limit = (value, count) => Math.max(0, Math.min(value, count - 1));
  const next = here ? { chart, column: limit(here.column + moves[0], positionsOf(values).length), row: limit(here.row + moves[1], isCells ? values.ranks.length : 1) } : { chart, column: 0, row: 0 };
  const from = event.shiftKey && here && hasParts(values) ? here.from : next.column;
  show(next, undefined, undefined, from);
});

document.addEventListener("focusout", (event) => { if (event.target.dataset?.chart) clear(); });
document.addEventListener("scroll", () => (at && document.activeElement === at.chart && !drag ? show(at, undefined, undefined, at.from) : clear()), true);
addEventListener("pageshow", clear);
