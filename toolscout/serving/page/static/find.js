// The view that finds: a request, the verdict, ranked tools and why, and what an agent would get.
import {el, fetched, later, make, number, percent, plural, sent, show, symbol} from "./dom.js";
import * as namespaces from "./namespaces.js";
import {toolItem} from "./tool.js";

const NAMES = {openai: "OpenAI Chat", "openai-responses": "OpenAI Responses", anthropic: "Anthropic", mcp: "MCP"};
const SAYINGS = {
  no_tool_needed: ["No tool needed", "This reads like something to answer in words. The agent gets no tools; these came nearest."],
  nothing_fits: ["Nothing here fits", "No tool of this catalogue seems to serve the request. The agent gets none; these came nearest."],
};
let state = null, running = null, everything = null, format = localStorage.getItem("toolscout-format") || "openai", asked = "";

export function prepare(fresh) {
  // Lists that somebody may have open just now are left alone as long as nothing changed.
  if (JSON.stringify(fresh) === JSON.stringify(state)) return;
  const moved = state && state.version !== fresh.version;
  state = fresh;
  fill(el("first"), state.retrievers, true);
  fill(el("second"), state.retrievers);
  fill(el("level"), state.levels);
  el("level").options[0].textContent = state.level ? `as usual (${state.level})` : "as usual (thresholds)";
  el("second-label").hidden = state.retrievers.length < 2;
  welcome();
  if (!moved) return;
  everything = null;
  // Nobody's place is lost while they read: what is focused stays.
  if (asked && !el("answers").contains(document.activeElement)) find();
}

function fill(select, values, all = false) {
  const chosen = select.value, kept = all ? [] : [select.options[0]];
  select.replaceChildren(...kept, ...values.map(value => make("option", {value}, value)));
  if (values.includes(chosen)) select.value = chosen;
}

function welcome() {
  el("welcome").hidden = Boolean(asked);
  el("welcome").replaceChildren(...(state.tools ? [
    make("p", {}, make("strong", {}, `${plural(state.tools, "tool")} in ${plural(state.namespaces, "namespace")}.`),
      " Write a request as someone would say it, and see which few tools an agent would get, why, and what that saves."),
    make("p", {}, "Press ", make("kbd", {}, "?"), " for the keys."),
  ] : [
    make("p", {}, make("strong", {}, "The catalogue is empty."), " Add a document or a server under ", make("a", {href: "#catalogue"}, "Catalogue"), ", or run ",
      make("code", {}, "toolscout add SOURCE"), "."),
  ]));
}

export async function find() {
  const request = el("request").value.trim();
  running?.abort();
  address(request);
  show(el("trouble"), "");
  asked = request;
  if (!request) {
    el("answers").replaceChildren();
    el("status").textContent = "";
    return welcome();
  }
  el("welcome").hidden = true;
  const mine = running = new AbortController();
  const retrievers = [el("first").value, el("second").value].filter((name, at) => name && (at === 0 || name !== el("first").value));
  el("answers").classList.add("busy");
  try {
    const body = {request, k: Number(el("count").value), retrievers};
    if (namespaces.chosen("namespace")) body.namespace = namespaces.chosen("namespace");
    if (el("level").value) body.level = el("level").value;
    const {answers} = await sent("search", body, mine.signal);
    el("answers").classList.toggle("two", answers.length > 1);
    el("answers").replaceChildren(...answers.map((answer, at) => drawn(answer, answers[1 - at])));
    el("status").textContent = answers.map(spoken).join(" ");
    savings();
  } catch (error) {
    if (error.name === "AbortError") return;
    el("answers").replaceChildren();
    show(el("trouble"), error.message);
  } finally {
    if (running === mine) el("answers").classList.remove("busy");
  }
}

const spoken = answer => `${answer.retriever}: ${heading(answer)}.`;
const offered = answer => answer.tools.filter(tool => tool.offered).length;
const heading = answer => (answer.verdict === "use" ? plural(offered(answer), "tool") + " to use" : SAYINGS[answer.verdict][0]);

function address(request) {
  const values = {q: request, in: namespaces.chosen("namespace"), k: el("count").value === "5" ? "" : el("count").value, with: el("second").value, level: el("level").value};
  const kept = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  if (location.hash.startsWith("#find") || !location.hash) history.replaceState(null, "", "#find" + (kept.size ? "?" + kept : ""));
}

function drawn(answer, other) {
  const [, saying] = SAYINGS[answer.verdict] || [];
  const words = tool => tool.reasons.filter(reason => reason.kind === "matched_words").flatMap(reason => reason.words);
  const list = make("ol", {class: "hits", "aria-label": "Tools found by " + answer.retriever}, ...answer.tools.map((tool, at) => toolItem(tool, {
    words: words(tool), rank: at + 1, near: !tool.offered, share: share(tool),
    foot: make("div", {class: "foot"},
      make("ul", {class: "why", "aria-label": "Why"}, ...tool.reasons.map(reason => make("li", {}, ...why(reason))), other ? elsewhere(tool, other) : null),
      thumbs(tool, answer.request)),
  })));
  return make("article", {class: "answer", "aria-label": "Answer of " + answer.retriever},
    make("div", {class: "found"}, make("div", {class: "verdict" + (answer.verdict === "use" ? "" : " no")},
      make("h2", {}, heading(answer)),
      make("p", {}, `${state.retrievers.length > 1 ? answer.retriever + " · " : ""}${plural(answer.searched, "tool")} searched in ${answer.ms.toFixed(answer.ms < 10 ? 1 : 0)} ms`),
      saying ? make("p", {class: "say"}, saying) : null),
    make("div", {class: "gauges"}, ...gauges(answer)),
    answer.notes.length ? make("ul", {class: "notes"}, ...answer.notes.map(note => make("li", {}, note))) : null,
    list), wire(answer));
}

/** Where the other retriever has the same tool. */
function elsewhere(tool, other) {
  const at = other.tools.findIndex(one => one.id === tool.id);
  return make("li", {class: "other"}, at < 0 ? `not in ${other.retriever}` : `${other.retriever} has it `, at < 0 ? null : make("b", {}, `#${at + 1}`));
}

/** One gauge for each value. What decided stands beside its threshold: "use" where a level did, else need and fit. */
function gauges(answer) {
  const {need, fit, use} = answer.thresholds, level = answer.verdict_level;
  return [level ? gauge(`Use (${level})`, answer.use, use) : null,
    gauge("Tool need", answer.need, level ? null : need), gauge("Catalogue fit", answer.fit, level ? null : fit)];
}

/** A value from 0 to 1, beside its threshold where it has one, with as many digits as tell them apart. */
function gauge(label, value, threshold) {
  if (value === null) return null;
  if (threshold === null) return make("div", {class: "gauge"}, make("span", {}, label), make("b", {}, value.toFixed(2)),
    make("div", {class: "bar plain", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": value.toFixed(2),
      "--value": value}));
  const low = value < threshold, digits = value.toFixed(2) === threshold.toFixed(2) ? 4 : 2;
  const told = value.toFixed(digits);
  return make("div", {class: "gauge"}, make("span", {}, label), make("b", {}, told, make("small", {}, ` ${low ? "<" : "≥"} ${threshold}`)),
    make("div", {class: "bar" + (low ? " low" : ""), role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": told,
      "aria-valuetext": `${told}, ${low ? "below" : "not below"} the threshold of ${threshold}`, title: `threshold ${threshold}`,
      "--value": value, "--threshold": threshold}));
}

/** A tool's score as a share of the best one; a tool that the request names comes first whatever its score. */
function share(tool) {
  if (tool.named) return make("span", {class: "share", title: "The request names this tool"}, "named");
  if (tool.share === null) return null;
  return make("span", {class: "share", title: "The tool's score as a share of the best score"},
    make("i", {"aria-hidden": "true", "--value": tool.share.toFixed(4)}), make("span", {}, percent(tool.share) + " of best"));
}

function why(reason) {
  const strong = text => make("b", {}, text);
  if (reason.kind === "exact_name") return ["names ", strong(reason.name)];
  if (reason.kind === "matched_words") return ["words ", strong(reason.words.join(", "))];
  if (reason.kind === "similarity") return ["meaning ", strong(reason.cosine.toFixed(2))];
  if (reason.kind === "reranked") return ["reranked ", strong(reason.score.toFixed(2))];
  if (reason.kind === "asked") return ["asked ", strong(reason.query)];
  if (reason.kind === "past_request") return ["used for ", strong(reason.request ? `“${reason.request}”` : "a request like it"), " " + reason.cosine.toFixed(2)];
  return [Object.values(reason).join(" ")];
}

function thumbs(tool, request) {
  const button = (kind, label, className) => {
    const made = make("button", {type: "button", class: "thumb " + className, "aria-pressed": "false", "aria-label": `${label}: ${tool.title || tool.name}`, title: label}, symbol(kind));
    made.addEventListener("click", async () => {
      if (made.getAttribute("aria-pressed") === "true") return;
      try {
        await sent("feedback", kind === "up" ? {request, used: [tool.id]} : {request, rejected: [tool.id]});
        made.parentElement.querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", String(one === made)));
        el("status").textContent = `${label} noted for ${tool.name}.`;
      } catch (error) {
        show(el("trouble"), error.message);
      }
    });
    return made;
  };
  return make("div", {class: "thumbs"}, button("up", "Right tool", "for"), button("down", "Wrong tool", "against"));
}

function wire(answer) {
  const panel = make("section", {class: "wire", "aria-label": "What the agent gets"});
  const saved = make("p", {class: "saved"}), json = make("pre", {class: "json", tabindex: "0", role: "tabpanel", "aria-label": "JSON"});
  const copy = make("button", {type: "button", class: "copy", onclick: async () => {
    await navigator.clipboard?.writeText(answer.wire[format].json);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }}, "Copy");
  const tabs = Object.keys(answer.wire).map(name => make("button", {type: "button", role: "tab", "data-format": name, onclick: () => choose(name)}, NAMES[name] || name));
  const list = make("div", {class: "tabs", role: "tablist", "aria-label": "Wire format", onkeydown: event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = tabs.findIndex(tab => tab.dataset.format === format);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    choose(next.dataset.format);
    next.focus();
  }}, ...tabs);
  panel.draw = () => {
    const {tokens, json: text} = answer.wire[format];
    const all = everything?.[format];
    tabs.forEach(tab => {
      tab.setAttribute("aria-selected", String(tab.dataset.format === format));
      tab.tabIndex = tab.dataset.format === format ? 0 : -1;
    });
    const parts = [tokens ? `${plural(tokens, "token")} for ${plural(offered(answer), "tool")}` : "No tools, no tokens"];
    if (all?.tokens) parts.push(`; all would take ${all.exact ? "" : "about "}${number(all.tokens)}. `, make("b", {}, saving(1 - tokens / all.tokens) + " saved"));
    saved.replaceChildren(...parts);
    json.replaceChildren(...coloured(text));
  };
  panel.append(make("header", {}, make("h3", {}, "What the agent gets"), copy, saved, list), json);
  panel.draw();
  return panel;
}

// Rounded down: 100 % is saved only where nothing is sent.
const saving = share => percent(Math.floor(1000 * share) / 1000, 1);

/** Keys and texts of JSON in their colours; what is written stays exactly the text. */
function coloured(text) {
  if (text.length > 200000) return [text];
  return text.split(/("(?:[^"\\]|\\.)*"(?:\s*:)?)/).map(part => (part.startsWith('"') ? make("span", {class: part.endsWith(":") ? "k" : "s"}, part) : part));
}

function choose(name) {
  format = name;
  localStorage.setItem("toolscout-format", name);
  document.querySelectorAll(".wire").forEach(panel => panel.draw());
}

async function savings() {
  if (everything) return;
  try {
    everything = await fetched("tokens");
    document.querySelectorAll(".wire").forEach(panel => panel.draw());
  } catch {
    everything = null; // the count of these tools stands without it
  }
}

export function nextFormat() {
  const names = state.formats;
  choose(names[(names.indexOf(format) + 1) % names.length]);
}

export function compare() {
  const other = state.retrievers.find(name => name !== el("first").value);
  if (!other) return;
  el("second").value = el("second").value ? "" : other;
  find();
}

export function begin(values) {
  el("request").value = values.get("q") || el("request").value;
  for (const [id, key] of [["count", "k"], ["second", "with"], ["level", "level"]]) {
    const wanted = values.get(key);
    if (wanted && [...el(id).options].some(option => option.value === wanted)) el(id).value = wanted;
  }
  namespaces.choose("namespace", values.get("in") || "");
  if (el("request").value) find();
}

export function listen() {
  const soon = later(160, find);
  el("request").addEventListener("input", () => soon());
  el("ask").addEventListener("submit", event => { event.preventDefault(); soon.now(); });
  namespaces.listen("namespace", () => soon.now(), told => show(el("trouble"), told));
  for (const id of ["count", "level", "first", "second"]) el(id).addEventListener("change", () => soon.now());
}
