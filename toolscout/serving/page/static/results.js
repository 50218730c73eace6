// The view of results: the plots as they were drawn, and every row in a table that sorts and filters.
import {el, fetched, later, make, number, picture, plural} from "./dom.js";

const MOST = 400;
let files = null, sorted = null;

export async function draw() {
  if (files) return;
  const found = await fetched("results");
  files = found.files;
  const rows = files.reduce((sum, file) => sum + file.rows.length, 0);
  el("results-about").textContent = found.folder
    ? `${plural(rows, "row")} in ${found.folder}; scores are percentages, times milliseconds.`
    : "No results folder. Start the server where results/ lies, or measure with: toolscout evaluate";
  el("table").replaceChildren(...files.map(file => make("option", {value: file.name}, `${file.name} (${number(file.rows.length)})`)));
  el("table").closest(".controls").hidden = !files.length;
  table();
  el("plots").replaceChildren(...await Promise.all(found.plots.map(plot)));
}

async function plot(name) {
  const title = name.replace(/\.svg$/, "").replaceAll("_", " ");
  const source = await picture("results/" + encodeURIComponent(name));
  return make("button", {type: "button", onclick: () => {
    el("plot-title").textContent = title;
    el("plot-image").src = source;
    el("plot-image").alt = "Plot: " + title;
    el("plot").showModal();
  }}, make("img", {src: source, alt: "", loading: "lazy"}), title);
}

function table() {
  const file = files.find(one => one.name === el("table").value);
  if (!file) return el("rows").replaceChildren();
  const words = el("rows-find").value.toLowerCase().split(/\s+/).filter(Boolean);
  let rows = file.rows.filter(row => words.every(word => row.some(cell => String(cell ?? "").toLowerCase().includes(word))));
  if (sorted && sorted.file === file.name) {
    const {at, down} = sorted, order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));
    rows = [...rows].sort((a, b) => (a[at] === null) - (b[at] === null) || (down ? -1 : 1) * order(a[at], b[at]));
  }
  // A column that says nothing of these rows is left out: kinds of measurements share a file.
  const seen = file.columns.map((_, at) => at).filter(at => rows.some(row => row[at] !== null && row[at] !== ""));
  const numeric = file.columns.map((_, at) => file.rows.every(row => row[at] === null || typeof row[at] === "number"));
  const head = seen.map(at => {
    const mine = sorted && sorted.file === file.name && sorted.at === at;
    return make("th", {scope: "col", class: numeric[at] ? "number" : "", "aria-sort": mine ? (sorted.down ? "descending" : "ascending") : null},
      make("button", {type: "button", onclick: () => {
        sorted = {file: file.name, at, down: mine ? !sorted.down : numeric[at]};
        table();
        el("rows").querySelectorAll("th button")[seen.indexOf(at)].focus();
      }}, file.columns[at]));
  });
  // One digit after the point in every row of a column of percentages, so that the points stand under each other.
  const digits = file.columns.map((_, at) => (numeric[at] && file.rows.some(row => !Number.isInteger(row[at] ?? 0))
    && file.rows.every(row => Number.isInteger(Math.round((row[at] ?? 0) * 1e6) / 1e5)) ? 1 : 0));
  const shown = (cell, at) => (typeof cell === "number" ? cell.toLocaleString("en", {minimumFractionDigits: digits[at], maximumFractionDigits: 6, useGrouping: "min2"}) : cell ?? "");
  const body = rows.slice(0, MOST).map(row => make("tr", {}, ...seen.map(at => make("td", {class: numeric[at] ? "number" : ""}, shown(row[at], at)))));
  const rest = rows.length > MOST ? make("p", {class: "quiet"}, `${number(rows.length - MOST)} more; filter to see them.`) : null;
  el("rows").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)), ...(rest ? [rest] : []));
}

export function listen() {
  const soon = later(120, table);
  el("table").addEventListener("change", () => soon.now());
  el("rows-find").addEventListener("input", () => soon());
}
