// One tool as both lists show it: a line that opens into everything there is to know.
import {make, plural} from "./dom.js";

/** Text with some of its words marked. */
export function marked(text, words) {
  if (!words.length) return [text];
  const escaped = words.map(word => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((a, b) => b.length - a.length);
  // Words are found from where they begin: "send" marks the whole of "sending", as the search takes them for the same.
  const found = new RegExp(`(?<![\\p{L}\\p{N}])((?:${escaped.join("|")})[\\p{L}\\p{N}]*)`, "giu");
  return text.split(found).map((part, at) => (at % 2 ? make("mark", {}, part) : part));
}

function parameters(list) {
  if (!list.length) return make("p", {class: "quiet"}, "Takes no parameters.");
  return make("dl", {class: "params"}, ...list.flatMap(one => [
    make("dt", {}, one.name + (one.required ? "" : "?")),
    make("dd", {}, make("span", {class: "type"}, one.type), one.description ? " " + one.description : ""),
  ]));
}

function codePath(code) {
  const steps = code.steps.map((step, level) => make("li", {},
    make("code", {}, step.code.join("-")),
    make("span", {class: "quiet"}, level === code.steps.length - 1 ? "this tool" : plural(step.tools, "tool"))));
  const near = code.near.length ? make("p", {class: "quiet"}, "Beside it: " + code.near.join(", ")) : null;
  return make("div", {}, make("h3", {}, "Path in the code tree"), make("ol", {class: "path"}, ...steps), near);
}

export function details(tool) {
  return make("div", {class: "more-of"},
    tool.code ? codePath(tool.code) : null,
    make("div", {}, make("h3", {}, "Parameters"), parameters(tool.parameters)),
    make("div", {}, make("h3", {}, "Name on the wire"), make("code", {}, tool.wire_name)));
}

/** A list item whose head is a button; `foot` stands between what the tool does and what opens. */
export function toolItem(tool, {words = [], rank, near, share = null, foot = null} = {}) {
  const name = make("button", {class: "name", type: "button", "aria-expanded": "false"}, tool.title || tool.name);
  const what = make("p", {class: "what"}, ...marked(tool.description, words));
  const item = make("li", {class: "hit" + (near ? " near" : ""), "data-tool": tool.id},
    rank ? make("span", {class: "rank", "aria-hidden": "true"}, String(rank)) : null,
    make("div", {class: "head"},
      make("div", {}, name, " ", make("span", {class: "space"}, tool.title ? `${tool.namespace}/${tool.name}` : tool.namespace)), share),
    what, foot);
  let opened = null;
  name.addEventListener("click", () => {
    const open = item.classList.toggle("open");
    name.setAttribute("aria-expanded", String(open));
    if (open) item.append(opened ??= details(tool));
    else opened?.remove();
  });
  return item;
}
