// A field that narrows to one namespace. The server suggests: there may be tens of thousands, too many for any list.
import {el, fetched, later, make, number, plural} from "./dom.js";

/** What the field narrows to; nothing while it holds no namespace there is. */
export const chosen = id => el(id).dataset.chosen || "";

export function choose(id, name) {
  el(id).value = el(id).dataset.chosen = name;
}

/** `act` runs whenever the field narrows to something else; `trouble` is told in words what is wrong with it. */
export function listen(id, act, trouble) {
  const field = el(id), list = el(field.getAttribute("list"));
  async function look(last) {
    const text = field.value.trim();
    const {namespaces, total} = await fetched("namespaces?" + new URLSearchParams({find: text}));
    if (text !== field.value.trim()) return;
    const names = Object.keys(namespaces);
    list.replaceChildren(...names.map(name => make("option", {value: name}, `${name} (${number(namespaces[name])})`)));
    const name = !text || names.includes(text) ? text : last && (total === 1 || names[0]?.toLowerCase() === text.toLowerCase()) ? names[0] : null;
    field.setAttribute("aria-invalid", String(name === null));
    if (name !== null && name !== chosen(id)) {
      choose(id, name);
      act();
    } else if (name === null && last) {
      trouble(total ? `${plural(total, "namespace")} with “${text}” in the name; choose one.` : `There is no namespace with “${text}” in its name.`);
    }
  }
  const looked = last => look(last).catch(error => trouble(error.message));
  const soon = later(120, looked);
  field.addEventListener("focus", () => soon.now(false));
  field.addEventListener("input", () => soon(false));
  field.addEventListener("change", () => soon.now(true));
}
