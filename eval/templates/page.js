"use strict";
// Functions that the scripts of a page share. Texts are untrusted, and are inserted only as text.
const $ = id => document.getElementById(id);
const unpacked = new Map();

async function unpack(element) {
  if (!unpacked.has(element)) {
    const bytes = Uint8Array.from(atob(element.textContent), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(element, JSON.parse(await new Response(stream).text()));
  }
  return unpacked.get(element);
}
function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}
function fill(select, values, labels) {
  const previous = select.value;
  select.replaceChildren(...values.map((v, i) => { const o = make("option", "", labels ? labels[i] : v); o.value = v; return o; }));
  if (values.map(String).includes(previous)) select.value = previous;
}
const unique = list => [...new Set(list)];
const tag = (text, kind) => make("span", "tag " + (kind || ""), text);
const number = value => typeof value === "number" ? String(+value.toFixed(4)).replace("-", "−") : value === null ? "–" : String(value);
