"use strict";
// Enhances pages that also work without a script: steps replace a part of the page instead of loading it anew.
// What is inserted comes from the server's own templates, in which all texts are escaped.
(() => {
const at = selector => document.querySelector(selector);
const isTyping = element => /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
let marks = null, reason = "", marksOf = "", wanted = 0;

async function load(url, options) {
  const response = await fetch(url, options);
  return { url: response.url, ok: response.ok, page: new DOMParser().parseFromString(await response.text(), "text/html") };
}

// ------------------------------------------------------------------ steps

async function swap(url, options) {
  const turn = ++wanted;
  const stage = at("#stage");
  stage.setAttribute("aria-busy", "true");
  try {
    const loaded = await load(url, options);
    if (turn !== wanted) return; // A later request replaces this one.
    const fresh = loaded.page.getElementById("stage");
    if (!fresh) { location.assign(loaded.url); return; }
    show(fresh);
    history.replaceState(null, "", loaded.url);
  } catch (error) {
    location.assign(typeof url === "string" ? url : location.href);
  } finally {
    if (at("#stage")) at("#stage").removeAttribute("aria-busy");
  }
}
function show(fresh) {
  const old = at("#stage"), focused = document.activeElement, open = openDetails(old);
  const hold = focused && old.contains(focused) && (focused.id ? "#" + CSS.escape(focused.id) : focused.name && focused.value ? `[name="${CSS.escape(focused.name)}"][value="${CSS.escape(focused.value)}"]` : focused.dataset.step ? "[aria-current=step]" : null);
  const before = at("#alternatives");
  old.replaceWith(document.importNode(fresh, true));
  const stage = at("#stage");
  for (const element of stage.querySelectorAll("details")) { const name = element.firstElementChild.textContent; if (open.has(name)) element.open = open.get(name); }
  const target = hold && stage.querySelector(hold);
  if (target) target.focus({ preventScroll: true });
  if (before && at("#whatif")) { before.classList.add("stale"); at("#whatif").append(before); } // keeps the page from jumping
  prepare();
}
function openDetails(stage) {
  return new Map([...stage.querySelectorAll("details")].map(element => [element.firstElementChild.textContent, element.open]));
}

// ------------------------------------------------------------------ what is loaded after the page

async function prepare() {
  const section = at("#whatif");
  if (section && isWanted(section.dataset.flag)) loadAlternatives(section);
  const next = at("#forward[href]");
  const image = at(".left figure.scene img");
  if (next && image) { // The next picture, so that a step shows it at once.
    const ahead = image.getAttribute("src").replace(/^\/picture\/(\d+)\/(\d+)\//, (_, file, place) => `/picture/${file}/${+place + 1}/`);
    if (ahead !== image.getAttribute("src")) new Image().src = ahead;
  }
  showMarks();
}
async function loadAlternatives(section) {
  const url = section.dataset.load;
  try {
    const { page, ok } = await load(url);
    const found = page.getElementById("alternatives");
    if (!ok || !found || section !== at("#whatif")) return;
    const old = section.querySelector("#alternatives");
    if (old) old.remove();
    section.append(document.importNode(found, true));
  } catch (error) { /* The link remains. */ }
}
const WORDS = { optimal: "optimal", costly: "costly", fatal: "fatal" };
async function showMarks() {
  const stage = at("#stage[data-marks]");
  if (!stage) return;
  const url = stage.dataset.marks;
  if (marksOf !== url) {
    marksOf = url; marks = null;
    try {
      const response = await fetch(url);
      if (response.ok) { const found = await response.json(); if (marksOf === url) { marks = found.marks; reason = found.reason; } }
    } catch (error) { return; }
  }
  if (!marks) return;
  for (const link of document.querySelectorAll(".timeline a[data-step]")) {
    const mark = WORDS[marks[+link.dataset.step][0]], cost = marks[+link.dataset.step][1];
    if (mark && !link.classList.contains(mark)) { link.classList.add(mark); link.title += `: ${mark}${cost && ", " + cost}`; link.setAttribute("aria-label", `${link.getAttribute("aria-label")}, ${mark}`); }
  }
  const legend = at("#legend");
  if (legend) legend.hidden = !marks.some(mark => mark[0]);
  const verdict = at("#verdict"), current = at(".timeline a[aria-current=step][data-step]");
  const mark = current && WORDS[marks[+current.dataset.step][0]], cost = mark && marks[+current.dataset.step][1];
  if (verdict && mark) { verdict.className = `q ${mark}`; verdict.textContent = cost ? `${mark}: ${cost}` : mark; }
  const why = at("#reason");
  if (why && reason) { why.textContent = reason; why.hidden = false; }
}

// ------------------------------------------------------------------ choices of the person

const choices = { whatif: true, hints: false }; // Hints would spoil a game.
function isWanted(name) { try { const stored = localStorage.getItem(name); return stored ? stored === "yes" : choices[name]; } catch (error) { return choices[name]; } }
function toggleAlternatives() {
  const name = at("#whatif").dataset.flag, isShown = isWanted(name);
  choices[name] = !isShown;
  try { localStorage.setItem(name, isShown ? "no" : "yes"); } catch (error) { /* It holds for this page. */ }
  const found = at("#alternatives");
  if (isShown && found) found.remove();
  if (!isShown) prepare();
}

document.addEventListener("click", event => {
  const link = event.target.closest("a[data-swap], #whatif h2 a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (link.closest("#whatif")) toggleAlternatives();
  else if (link.hasAttribute("href")) swap(link.href);
});
document.addEventListener("submit", event => {
  const form = event.target;
  if (form.hasAttribute("data-filter")) for (const field of form.elements) if (!field.value && field.name) field.disabled = true;
  if (!form.hasAttribute("data-swap")) return;
  event.preventDefault();
  swap(form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form, event.submitter)) });
});
document.addEventListener("input", event => {
  if (!event.target.hasAttribute("data-narrow")) return;
  const text = event.target.value.toLowerCase();
  for (const button of event.target.form.querySelectorAll(".choices button")) button.hidden = !button.value.toLowerCase().includes(text);
});
document.addEventListener("change", event => {
  if (event.target.tagName === "SELECT" && event.target.form && event.target.form.hasAttribute("data-filter")) event.target.form.requestSubmit();
});

const ARROWS = { ArrowUp: "Up", ArrowDown: "Down", ArrowLeft: "Left", ArrowRight: "Right" };
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const dialog = at("#help");
  if (dialog.open) return;
  if (event.key === "Escape" && isTyping(event.target)) { event.target.blur(); return; }
  if (isTyping(event.target)) return;
  const press = selector => { const found = at(selector); if (found && !found.disabled) { event.preventDefault(); found.click(); } return !!found; };
  const name = ARROWS[event.key];
  if (name && at(".actions") && press(`.actions button[value="${name}"]`)) return;
  switch (event.key) {
    case "ArrowLeft": press("#back[href]"); break;
    case "ArrowRight": press("#forward[href]"); break;
    case "Home": if (at(".timeline")) press(".timeline li:first-child a"); break;
    case "End": if (at(".timeline")) press(".timeline li:last-child a"); break;
    case "j": press("#older") || move(1); break;
    case "k": press("#newer") || move(-1); break;
    case "u": press("#undo"); break;
    case "w": press("#whatif h2 a"); break;
    case "/": if (at("#search")) { event.preventDefault(); at("#search").focus(); at("#search").select(); } break;
    case "?": event.preventDefault(); dialog.showModal(); break;
  }
});
function move(by) {
  const rows = [...document.querySelectorAll("a[data-row]")];
  const place = rows.indexOf(document.activeElement);
  const row = rows[place < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, place + by))];
  if (row) row.focus();
}

// ------------------------------------------------------------------ runs in progress

function follow() {
  const stage = at("#stage[data-live]");
  if (!stage) return;
  setTimeout(async () => {
    const held = document.activeElement;
    if (!document.hidden && !(held && isTyping(held))) {
      try {
        const { page, ok } = await load(at("#stage").dataset.source || location.href);
        const fresh = ok && page.getElementById("stage");
        if (fresh && fresh.innerHTML !== at("#stage").dataset.seen) { const seen = fresh.innerHTML; show(fresh); at("#stage").dataset.seen = seen; }
      } catch (error) { /* The viewer has stopped, or will answer again. */ }
    }
    follow();
  }, 1000 * (+stage.dataset.live || 5));
}

at("#help-button").hidden = false;
at("#help-button").addEventListener("click", () => at("#help").showModal());
prepare();
follow();
})();
