"use strict";
const $ = id => document.getElementById(id);
const cells = [...document.querySelectorAll("script.cell")];
const unpacked = new Map();
let episodes = [], shown = [], turn = 0;

async function unpack(cell) {
  if (!unpacked.has(cell)) {
    const bytes = Uint8Array.from(atob(cell.textContent), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(cell, JSON.parse(await new Response(stream).text()));
  }
  return unpacked.get(cell);
}
function fill(select, values, labels) {
  const previous = select.value;
  select.replaceChildren(...values.map((v, i) => { const o = document.createElement("option"); o.value = v; o.textContent = labels ? labels[i] : v; return o; }));
  if (values.map(String).includes(previous)) select.value = previous;
}
const unique = list => [...new Set(list)];
function tag(text, kind) { const s = document.createElement("span"); s.className = "tag " + (kind || ""); s.textContent = text; return s; }
const outcome = e => e.error ? "error" : e.success ? "solved" : "unsolved";

function pickEntry() { fill($("agent"), unique(cells.filter(c => c.dataset.entry === $("entry").value).map(c => c.dataset.agent))); return pickAgent(); }
async function pickAgent() {
  const cell = cells.find(c => c.dataset.entry === $("entry").value && c.dataset.agent === $("agent").value);
  episodes = cell ? await unpack(cell) : [];
  $("note").textContent = cell && cell.dataset.total !== cell.dataset.shown ? `The first ${cell.dataset.shown} of ${cell.dataset.total} episodes; episodes.jsonl holds all of them.` : "";
  pickOutcome();
}
function pickOutcome() {
  shown = episodes.filter(e => !$("outcome").value || outcome(e) === $("outcome").value);
  const marks = { solved: "✓", unsolved: "✗", error: "!" };
  fill($("task"), shown.map((_, i) => i), shown.map(e => `${marks[outcome(e)]} ${e.task}${e.repeat ? ` (${e.repeat + 1})` : ""}`));
  pickTask();
}
function pickTask() { turn = 0; const e = shown[+$("task").value]; $("slider").max = e ? e.turns.length : 0; draw(); }
function draw() {
  const e = shown[+$("task").value];
  for (const id of ["verdict", "moves"]) $(id).replaceChildren();
  $("reply").hidden = $("tokens").hidden = true; $("thought").textContent = ""; $("slider").value = turn;
  if (!e) { $("observation").textContent = "No episode with this outcome."; $("position").textContent = ""; $("previous").disabled = $("next").disabled = true; return; }
  const last = turn === e.turns.length, t = e.turns[turn];
  $("position").textContent = last ? "end" : `${turn + 1} / ${e.turns.length}`;
  $("previous").disabled = turn === 0; $("next").disabled = last;
  const ret = e.turns.flatMap(x => x.moves).reduce((sum, m) => sum + m.reward, 0);
  $("verdict").append(tag(e.error ? "error" : e.success ? "solved" : "not solved", e.success && !e.error ? "good" : "bad"), tag(`return ${ret.toFixed(2)}`), tag(`seed ${e.seed}`));
  if (e.truncated) $("verdict").append(tag("truncated by a limit", "bad"));
  for (const [k, v] of Object.entries(e.details)) $("verdict").append(tag(`${k}: ${v}`));
  if (e.error && last) $("verdict").append(tag(e.error, "bad"));
  $("observation").textContent = last ? e.final_observation : t.observation;
  if (last) return;
  if (t.thought) $("thought").textContent = t.thought;
  for (const m of t.moves) {
    const li = document.createElement("li"), code = document.createElement("code");
    code.textContent = m.action === "" ? "(empty)" : m.action;
    li.append("→ ", code, " ", tag((m.reward >= 0 ? "+" : "") + m.reward.toFixed(2), m.reward > 0 ? "good" : ""));
    if (!m.valid) li.append(tag("refused", "bad")); else if (!m.changed) li.append(tag("no change"));
    $("moves").append(li);
  }
  if (t.reply !== t.moves.map(m => m.action).join("\n")) { $("reply").textContent = t.reply; $("reply").hidden = false; }
  if (t.sampled !== undefined) { $("read").textContent = t.prompt; $("wrote").textContent = t.sampled; $("tokens").hidden = false; }
}
function go(to) { const e = shown[+$("task").value]; if (e) { turn = Math.max(0, Math.min(e.turns.length, to)); draw(); } }
$("entry").onchange = pickEntry; $("agent").onchange = pickAgent; $("outcome").onchange = pickOutcome; $("task").onchange = pickTask;
$("slider").oninput = () => go(+$("slider").value); $("previous").onclick = () => go(turn - 1); $("next").onclick = () => go(turn + 1);
document.addEventListener("keydown", ev => { if (/SELECT|INPUT/.test(ev.target.tagName)) return; if (ev.key === "ArrowLeft") go(turn - 1); if (ev.key === "ArrowRight") go(turn + 1); });
fill($("entry"), unique(cells.map(c => c.dataset.entry)));
$("second").hidden = unique(cells.map(c => c.dataset.agent)).length < 2;
pickEntry();
