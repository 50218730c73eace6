// The view of the catalogue: where tools came from, how fresh they are, more of them by address or by file.
import {ago, el, fetched, later, make, number, plural, sent, show} from "./dom.js";
import * as namespaces from "./namespaces.js";
import {toolItem} from "./tool.js";

const PAGE = 50, MOST = 20000000;
let changed = () => {}, offset = 0, version = null, drawing = 0;

export async function draw(state) {
  el("catalogue-about").textContent = `${plural(state.tools, "tool")} · version ${number(state.version)}`
    + (state.words_only ? ` · ${plural(state.words_only, "tool")} being embedded, found by words until then` : "");
  el("add").hidden = !state.caller.admin;
  el("add-locked").hidden = state.caller.admin || state.caller.name !== "anonymous";
  el("sources").hidden = el("sources").hidden || !state.caller.admin;
  if (state.caller.admin) await sources();
  if (version !== state.version) {
    version = state.version;
    await list(true);
  }
}

async function sources() {
  const {sources: found} = await fetched("sources");
  const row = one => make("tr", {},
    make("td", {class: "wide"}, one.source || "(no name)"),
    make("td", {class: "number"}, one.tools === null ? "" : number(one.tools)),
    make("td", {}, make("time", {datetime: one.changed || "", title: one.changed || ""}, one.tools === null ? "" : ago(one.changed))),
    make("td", {class: one.error ? "wide bad" : ""}, one.error || "fine"));
  const head = make("tr", {}, make("th", {scope: "col"}, "Source"), make("th", {scope: "col", class: "number"}, "Tools"), make("th", {scope: "col"}, "Changed"), make("th", {scope: "col"}, "State"));
  el("sources").hidden = !found.length;
  el("sources").replaceChildren(...(found.length ? [make("h2", {}, "Sources"), make("table", {}, make("thead", {}, head), make("tbody", {}, ...found.map(row)))] : []));
}

async function list(again) {
  const mine = ++drawing;
  offset = again ? 0 : offset;
  const wanted = new URLSearchParams({offset, limit: PAGE, namespace: namespaces.chosen("tools-namespace"), find: el("tools-find").value.trim()});
  const {tools, total} = await fetched("tools?" + wanted);
  if (mine !== drawing) return;
  const items = tools.map(tool => toolItem(tool));
  if (again) el("tools").replaceChildren(...items);
  else el("tools").append(...items);
  offset += tools.length;
  el("tools-title").textContent = total ? `Tools, ${number(offset)} of ${number(total)}` : "No such tools";
  el("tools-more").hidden = offset >= total;
}

async function add(body, what) {
  show(el("add-trouble"), "");
  el("added").textContent = `Reading ${what} …`;
  try {
    const done = await sent("add", body);
    const parts = [[done.added, "added"], [done.changed, "changed"], [done.unchanged, "unchanged"]].filter(([count]) => count).map(([count, verb]) => `${number(count)} ${verb}`);
    el("added").textContent = `${what}: ${parts.join(", ") || "no tools"}.`;
    show(el("add-trouble"), done.problems.length ? `${plural(done.problems.length, "entry").replace("entrys", "entries")} left out: ${done.problems.slice(0, 5).join(" · ")}` : "");
    return true;
  } catch (error) {
    el("added").textContent = "";
    show(el("add-trouble"), error.message);
    return false;
  } finally {
    await changed();
  }
}

async function take(files) {
  for (const file of files) {
    if (file.size > MOST) {
      show(el("add-trouble"), `${file.name} is larger than 20 MB; add it with: toolscout add ${file.name}`);
      return;
    }
    if (!await add({name: file.name, text: await file.text()}, file.name)) return;
  }
}

export function listen(refresh) {
  changed = refresh;
  const again = later(160, () => list(true).catch(trouble));
  el("tools-find").addEventListener("input", () => again());
  namespaces.listen("tools-namespace", () => { show(el("tools-trouble"), ""); again.now(); }, told => show(el("tools-trouble"), told));
  el("tools-more").addEventListener("click", () => list(false).catch(trouble));
  el("add").addEventListener("submit", async event => {
    event.preventDefault();
    const address = el("address").value.trim();
    if (address && await add({url: address}, address)) el("address").value = "";
  });
  el("file").addEventListener("change", async () => {
    await take([...el("file").files]);
    el("file").value = "";
  });
  // A file may be dropped anywhere; the browser would otherwise open it and leave this page.
  const withFiles = event => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", event => {
    if (!withFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", event => {
    document.body.classList.remove("dragging");
    if (!withFiles(event)) return;
    event.preventDefault();
    if (el("add").hidden) return;
    location.hash = "#catalogue";
    take([...event.dataTransfer.files]);
  });
}

const trouble = error => show(el("add-trouble"), error.message);
