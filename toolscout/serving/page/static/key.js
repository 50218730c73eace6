// The dialog that asks for a key where the server wants one.
import {el, show} from "./dom.js";

export function ask(why, trouble = "") {
  el("key-why").textContent = why;
  show(el("key-trouble"), trouble);
  if (!el("key").open) el("key").showModal();
}

/** Ask whenever an answer was refused for want of a key; `used` is called once one is given. */
export function listen(why, used) {
  document.addEventListener("key-wanted", event => ask(why, event.detail));
  el("key-form").addEventListener("submit", event => {
    event.preventDefault();
    sessionStorage.setItem("toolscout-key", el("key-text").value.trim());
    el("key").close();
    used();
  });
}
