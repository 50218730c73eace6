// The live view: the figures of `toolscout top`, asked for again and again while somebody looks.
import {el, fetched, make, number, percent, plural, show} from "./dom.js";

const EVERY_MS = 2000;
let timer, look = "", turn = 0;

/** Start to ask, or stop. What comes first is of all since the server started, then of the time between two answers. */
export function follow(on) {
  clearTimeout(timer);
  look = "";
  const mine = ++turn;
  if (on) step(mine);
}

async function step(mine) {
  try {
    if (!document.hidden) {
      const figures = await fetched("live?since=" + encodeURIComponent(look));
      if (mine !== turn) return;
      look = figures.look;
      draw(figures);
      show(el("live-trouble"), "");
    }
  } catch (error) {
    if (mine !== turn) return;
    show(el("live-trouble"), error.message);  // it may be starting again
  }
  timer = setTimeout(() => step(mine), EVERY_MS);
}

function draw(figures) {
  const {per_second: speed, verdicts, servers, down} = figures;
  const searches = Object.values(verdicts).reduce((sum, count) => sum + count, 0);
  const of = figures.seconds ? `of the last ${figures.seconds.toFixed(1)} s` : "since the server started";
  el("live-about").textContent = `${plural(figures.tools, "tool")} · figures ${of}`;
  const cards = [
    [speed === null ? number(figures.requests) : decimal(speed), speed === null ? "requests" : "requests/s"],
    [number(figures.searches_inside), "searches running or waiting"],
    [number(figures.words_only), "tools not embedded"],
    [`${number(Math.round(figures.memory_bytes / 1e6))} MB`, "memory"],
    ...Object.entries(verdicts).map(([name, count]) => [searches ? percent(count / searches) : "–", `${name} (${number(count)})`]),
    ...(servers ? [[`${number(servers - down.length)} of ${number(servers)}`, "servers answer"]] : []),
  ];
  el("figures").replaceChildren(
    make("dl", {class: "cards"}, ...cards.map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    ...(down.length ? [make("h2", {}, "Servers that do not answer"), make("ul", {class: "down"}, ...down.map(name => make("li", {}, name)))] : []),
    table(["Route", "Requests", "Failed", "p50 ms", "p95 ms"],
      figures.routes.map(one => [one.route, number(one.requests), number(one.failed), decimal(one.p50_ms), decimal(one.p95_ms)])),
    ...(figures.slowest.length ? [table(["Slowest tools", "Calls", "Failed", "Mean ms"],
      figures.slowest.map(one => [one.tool, number(one.calls), number(one.failed), decimal(one.mean_ms)]))] : []));
}

const decimal = value => (value === null ? "" : value.toLocaleString("en", {minimumFractionDigits: 1, maximumFractionDigits: 1}));

function table(head, rows) {
  const cell = (tag, text, at, more) => make(tag, {class: at ? "number" : "wide", ...more}, text);
  return make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text, at) => cell("th", text, at, {scope: "col"})))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((text, at) => cell("td", text, at))))));
}
