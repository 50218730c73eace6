// What every view uses: elements made of text alone, and the server's answers.

export const el = id => document.getElementById(id);

/** An element. Children are elements or text; nothing that comes from a catalogue is ever read as HTML. */
export function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) made.style.setProperty(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}

export function symbol(name) {
  const space = "http://www.w3.org/2000/svg";
  const made = document.createElementNS(space, "svg"), use = document.createElementNS(space, "use");
  made.setAttribute("aria-hidden", "true");
  use.setAttribute("href", "#" + name);
  made.append(use);
  return made;
}

export const number = value => value.toLocaleString("en");
export const plural = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
export const percent = (value, digits = 0) => `${(100 * value).toFixed(digits)} %`;

export function ago(text) {
  if (!text) return "not known";
  const seconds = Math.max(0, (Date.now() - Date.parse(text)) / 1000);
  const units = [["day", 86400], ["hour", 3600], ["minute", 60]];
  for (const [name, size] of units) if (seconds >= size) return plural(Math.floor(seconds / size), name) + " ago";
  return "just now";
}

export function show(box, message) {
  box.textContent = message || "";
  box.hidden = !message;
}

export function later(wait, act) {
  let timer;
  const planned = (...given) => { clearTimeout(timer); timer = setTimeout(() => act(...given), wait); };
  planned.now = (...given) => { clearTimeout(timer); act(...given); };
  return planned;
}

async function ask(path, {body, signal} = {}) {
  const headers = {}, key = sessionStorage.getItem("toolscout-key");
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch("page/" + path, {
      method: body === undefined ? "GET" : "POST", headers, signal, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is toolscout serve still running?");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("key-wanted", {detail: key ? problem.detail : ""}));
  const wait = answer.headers.get("Retry-After");
  throw new Error((problem.detail || problem.title || `The server answered ${answer.status}.`) + (wait ? ` Try again in ${wait} s.` : ""));
}

export const fetched = async (path, signal) => (await ask(path, {signal})).json();
export const sent = async (path, body, signal) => (await ask(path, {body, signal})).json();
export const picture = async path => URL.createObjectURL(await (await ask(path)).blob());
