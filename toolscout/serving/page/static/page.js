// The page itself: views, themes, keys, and the state of the server that all of them follow.
import * as catalogue from "./catalogue.js";
import {el, fetched, number, plural, show} from "./dom.js";
import * as find from "./find.js";
import * as key from "./key.js";
import * as live from "./live.js";
import * as results from "./results.js";

const VIEWS = ["find", "catalogue", "results", "live"], THEMES = ["auto", "light", "dark"];
let state = null, polling, lost = false;

const current = () => VIEWS.find(view => location.hash.replace(/^#/, "").split("?")[0] === view) || "find";

async function refresh() {
  clearTimeout(polling);
  try {
    state = await fetched("state");
    if (lost) show(el("trouble"), "");
    lost = false;
    find.prepare(state);
    for (const view of ["results", "live"]) document.querySelector(`nav a[href="#${view}"]`).hidden = !state.caller.admin;
    el("about").textContent = `${plural(state.tools, "tool")} · ${state.retrievers[0]}` + (state.words_only ? ` · ${number(state.words_only)} not embedded yet` : "");
    await drawView();
  } catch (error) {
    lost = true;
    show(el("trouble"), error.message);
  }
  // What is embedded in the background is worth following closely; anything else is not.
  polling = setTimeout(() => (document.hidden ? null : refresh()), state?.words_only ? 2000 : 15000);
}

async function drawView() {
  if (current() === "catalogue") await catalogue.draw(state);
  if (current() === "results") await results.draw().catch(error => { el("results-about").textContent = error.message; });
}

function turn(focus = false) {
  const view = current();
  for (const name of VIEWS) {
    el(name).hidden = name !== view;
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === "find" ? "toolscout" : view[0].toUpperCase() + view.slice(1) + " · toolscout";
  live.follow(view === "live");
  if (state) drawView().catch(error => show(el("trouble"), error.message));
  if (focus && view === "find") el("request").focus();
}

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("toolscout-theme", name);
  el("theme").querySelector("use").setAttribute("href", "#" + {auto: "auto", light: "sun", dark: "moon"}[name]);
  el("theme").setAttribute("aria-label", `Theme: ${name}`);
  el("theme").title = `Theme: ${name}`;
}
const themed = () => localStorage.getItem("toolscout-theme") || "auto";
const nextTheme = () => theme(THEMES[(THEMES.indexOf(themed()) + 1) % THEMES.length]);

const names = () => [...document.querySelectorAll(`#${current()} .hit .name`)];

function step(by) {
  const all = names(), here = all.indexOf(document.activeElement?.closest(".hit")?.querySelector(".name"));
  const next = here < 0 ? (by > 0 ? all[0] : null) : all[here + by];
  if (next) {
    next.focus();
    next.closest(".hit").scrollIntoView({block: "nearest"});
  } else if (by < 0 && current() === "find") el("request").focus();
  return Boolean(next) || here >= 0;
}

function aside(by) {
  const lists = [...document.querySelectorAll("#answers .hits")], hit = document.activeElement?.closest(".hit");
  const at = lists.findIndex(list => list.contains(hit));
  if (at < 0 || !lists[at + by]) return false;
  const row = [...lists[at].children].indexOf(hit), other = lists[at + by].children;
  other[Math.min(row, other.length - 1)]?.querySelector(".name").focus();
  return true;
}

const thumb = kind => document.activeElement?.closest(".hit")?.querySelector(".thumb." + kind)?.click();

const KEYS = {
  "/": () => { location.hash = current() === "find" ? location.hash : "#find"; turn(true); el("request").select(); },
  "?": () => el("keys").showModal(),
  ArrowDown: () => step(1), j: () => step(1),
  ArrowUp: () => step(-1), k: () => step(-1),
  ArrowRight: () => aside(1), ArrowLeft: () => aside(-1),
  y: () => thumb("for"), n: () => thumb("against"),
  c: () => current() === "find" && find.compare(),
  w: () => current() === "find" && find.nextFormat(),
  t: nextTheme,
  1: () => { location.hash = "#find"; }, 2: () => { location.hash = "#catalogue"; }, 3: () => { location.hash = "#results"; },
  4: () => { location.hash = "#live"; },
  Escape: () => { if (current() === "find") el("request").focus(); },
};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const at = event.target;
  const typing = at.matches("input, textarea, select");
  if (at.id === "request" && event.key === "ArrowDown") { if (step(1)) event.preventDefault(); return; }
  if (at.id === "request" && !at.value && event.key === "?") { event.preventDefault(); el("keys").showModal(); return; }
  if (typing && event.key === "Escape") { if (at.id !== "request" || !at.value) at.blur(); return; }
  if (typing || (at.matches(".json, .rows") && event.key.startsWith("Arrow"))) return;
  const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (!act) return;
  if (act() !== false) event.preventDefault();
});

key.listen("This server answers only to those who have a key.", () => {
  live.follow(current() === "live");
  refresh().then(() => find.find());
});
el("token-open").addEventListener("click", () => key.ask("The server printed a token when it started: whoever has it may change the catalogue."));
for (const button of document.querySelectorAll("dialog .close")) button.addEventListener("click", () => button.closest("dialog").close());
el("keys-open").addEventListener("click", () => el("keys").showModal());
el("theme").addEventListener("click", nextTheme);
addEventListener("hashchange", () => turn(true));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

// The token that a server without keys prints comes behind the "#", which no browser sends; it does not stay in the address.
const token = /^#token=([\w-]+)$/.exec(location.hash);
if (token) {
  sessionStorage.setItem("toolscout-key", token[1]);
  history.replaceState(null, "", location.pathname);
}
theme(THEMES.includes(themed()) ? themed() : "auto");
find.listen();
catalogue.listen(refresh);
results.listen();
turn(true);
await refresh();
find.begin(new URLSearchParams(location.hash.split("?")[1] || ""));
