"use strict";
const ROWS = 100; // rows of the index that are added at once
const LONG = 24, SHOWN = 16; // a text of more than LONG lines is cut to SHOWN until it is unfolded
let cells = [], texts = {}, index = [], rows = [], open = null, episode = null, turn = 0;
let whole = null; // null: whole conversations of language agents, and other episodes turn by turn

const MARKS = { solved: "✓", unsolved: "✗", error: "!" };

// ------------------------------------------------------------------ index of episodes

function pickEntry() { fill($("agent"), unique(cells.filter(c => c.dataset.entry === $("entry").value).map(c => c.dataset.agent))); return pickAgent(); }
async function pickAgent() {
  const cell = cells.find(c => c.dataset.entry === $("entry").value && c.dataset.agent === $("agent").value);
  index = cell ? (await unpack(cell)).map(([outcome, task, repeat, ret, steps, turns], place) => ({ outcome, task, repeat, ret, steps, turns, place, cell })) : [];
  return pickRows();
}
function pickRows() {
  const found = $("find").value.toLowerCase();
  rows = index.filter(e => (!$("outcome").value || e.outcome === $("outcome").value) && e.task.toLowerCase().includes(found));
  $("list").replaceChildren();
  addRows();
  const same = open && rows.find(e => e.task === open.task && e.repeat === open.repeat);
  return show(same || rows[0]);
}
function addRows() {
  const first = $("list").children.length;
  for (const e of rows.slice(first, first + ROWS)) {
    const name = make("button", "link", e.repeat ? `${e.task} (${e.repeat + 1})` : e.task || "(no name)");
    name.onclick = () => show(e);
    const head = make("th", "name", name);
    head.scope = "row";
    const row = make("tr", "", make("td", "name " + (e.outcome === "solved" ? "good" : "bad"), `${MARKS[e.outcome]} ${e.outcome === "unsolved" ? "not solved" : e.outcome}`), head, make("td", "", number(e.ret)), make("td", "", number(e.steps)), make("td", "wide", number(e.turns)));
    e.row = row;
    $("list").append(row);
  }
  const left = rows.length - $("list").children.length;
  $("more").hidden = left <= 0;
  $("more").textContent = `Show ${Math.min(left, ROWS)} more of ${left}`;
  $("count").textContent = rows.length === index.length ? `${index.length} episodes` : `${rows.length} of ${index.length} episodes`;
}

// ------------------------------------------------------------------ one episode

async function show(entry) {
  open = entry;
  for (const row of $("list").children) row.removeAttribute("aria-selected");
  $("episode").hidden = !entry;
  if (!entry) { $("count").textContent = "No episode with this outcome and task."; return; }
  if (entry.row) entry.row.setAttribute("aria-selected", "true");
  const size = +entry.cell.dataset.chunk;
  let chunk = entry.cell;
  for (let k = Math.floor(entry.place / size); k >= 0 && chunk; k--) { chunk = chunk.nextElementSibling; if (chunk && !chunk.classList.contains("chunk")) chunk = null; }
  const loaded = chunk ? (await unpack(chunk))[entry.place % size] : null;
  if (open !== entry) return; // Another one was chosen meanwhile.
  $("title").textContent = entry.task;
  $("verdict").replaceChildren();
  episode = null;
  $("steps").hidden = !loaded;
  if (!loaded) { $("turns").replaceChildren(make("p", "soft", "This page leaves this episode out; episodes.jsonl holds it.")); return; }
  const trials = [...(loaded.trials || []), loaded];
  $("trials").hidden = trials.length < 2;
  $("trial").replaceChildren();
  fill($("trial"), trials.map((_, k) => k), trials.map((_, k) => `${k + 1} of ${trials.length}`));
  $("trial").value = trials.length - 1;
  $("trial").onchange = () => pickTrial(trials[+$("trial").value]);
  pickTrial(loaded);
}
function pickTrial(chosen) {
  episode = { ...chosen, requests: requests(chosen), first: [] };
  let count = 0;
  for (const t of episode.turns) { episode.first.push(count); count += t.moves.length; }
  turn = 0;
  $("slider").max = episode.turns.length;
  const ret = episode.turns.flatMap(t => t.moves).reduce((sum, m) => sum + m.reward, 0);
  const good = episode.success && !episode.error;
  $("verdict").replaceChildren(tag(episode.error ? "error" : good ? "solved" : "not solved", good ? "good" : "bad"), tag(`return ${number(ret)}`), tag(`seed ${episode.seed}`));
  const labels = episode.decisions;
  if (labels && labels.unlabelled) $("verdict").append(tag(`no labels: ${labels.unlabelled}`));
  else if (labels && labels.outcome !== "solved") $("verdict").append(tag(`why: ${labels.outcome}`, "bad"));
  if (labels && labels.exact === false) $("verdict").append(tag("decisions over the shortest known"));
  if (episode.truncated) $("verdict").append(tag("truncated by a limit", "bad"));
  for (const [k, v] of Object.entries(episode.details)) $("verdict").append(tag(`${k}: ${number(v).slice(0, 80)}`));
  draw();
}
// The inverse of `pack_exchanges` (agents/exchange.py).
function requests(e) {
  const observations = [...e.turns.map(t => t.observation), e.final_observation], latest = {};
  return (e.exchanges || []).map(x => {
    const purpose = x.purpose || "turn", before = latest[purpose];
    const earlier = before ? before.messages : [], [m, n] = x.keep || [earlier.length, 0];
    const prefill = "prefill" in x ? x.prefill : before ? before.prefill : "";
    const text = c => c === null ? before.answer : typeof c === "string" ? c
      : Array.isArray(c) ? c.map(part => typeof part === "number" ? observations[part] : part).join("")
      : (c.text in texts ? texts[c.text] : "(This text is missing: texts.jsonl is damaged.)") + (c.after || "");
    const added = x.add.map(([role, content]) => ({ role, content: text(content), known: content === null }));
    const messages = [...earlier.slice(0, m), ...earlier.slice(earlier.length - n), ...added];
    const reply = "reply" in x ? x.reply : e.turns[x.turn].reply.slice(prefill.length);
    const finish = "finish" in x ? x.finish : "stop";
    return latest[purpose] = { turn: x.turn, purpose, messages, added, cut: m + n < earlier.length, prefill, finish, answer: reply === null ? null : prefill + reply };
  });
}
const isWhole = () => whole ?? episode.requests.length > 0;
function draw() {
  const end = episode.turns.length, all = isWhole();
  $("slider").value = turn;
  $("slider").hidden = $("previous").hidden = $("next").hidden = $("position").hidden = all;
  $("whole").setAttribute("aria-pressed", all);
  $("position").textContent = turn === end ? "end" : `${turn + 1} / ${end}`;
  $("previous").disabled = turn === 0; $("next").disabled = turn === end;
  const shown = all ? [...Array(end + 1).keys()] : [turn];
  $("turns").replaceChildren(...shown.map(drawTurn));
}
function drawTurn(k) {
  const section = make("section", "turn"), t = episode.turns[k];
  section.append(make("h4", "", t ? `Turn ${k + 1}` : "End"));
  const asked = episode.requests.filter(r => r.turn === k);
  if (!t || !asked.length) section.append(message("environment", t ? t.observation : episode.final_observation));
  for (const request of asked) section.append(...drawRequest(request));
  if (!t) { if (episode.error) section.append(tag(episode.error, "bad")); return section; }
  if (!asked.length && t.thought) section.append(message("thought", t.thought));
  if (!asked.length && t.reply !== t.moves.map(m => m.action).join("\n")) section.append(message("agent", t.reply));
  section.append(make("ul", "moves", ...t.moves.map((m, i) => {
    const li = make("li", "", "→ ", make("code", "", m.action === "" ? "(empty)" : m.action), " ", tag((m.reward >= 0 ? "+" : "") + number(m.reward), m.reward > 0 ? "good" : ""));
    if (!m.valid) li.append(tag("refused", "bad")); else if (!m.changed) li.append(tag("no change"));
    li.append(...judgments(episode.decisions, episode.first[k] + i));
    return li;
  })));
  if (t.sampled !== undefined) section.append(fold("Prompt and reply, token for token", () => [make("pre", "read", t.prompt), make("pre", "wrote", t.sampled)]));
  return section;
}
// Labels of an action, in the form of decisions.jsonl.
function judgments(labels, index) {
  if (!labels || !labels.marks) return [];
  const mark = labels.marks[index], visit = labels.visits[index], found = [];
  const [value, steps] = labels.regrets[index] || (mark === "f" ? [1, null] : [0, 2]);
  const lost = value > 0 ? `gives away ${+(100 * value).toFixed(1)} % of ${labels.measure === "probability of success" ? "success" : labels.measure}` : `costs ${number(steps)} ${steps === 1 ? "step" : "steps"}`;
  if (mark === "o") found.push(tag("optimal", "good"));
  if (mark === "c") found.push(tag(lost, "costly"));
  if (mark === "f") found.push(tag(`fatal: ${lost}`, "bad"));
  if (mark === "x") found.push(tag("nothing left to lose"));
  if (mark === "?") found.push(tag("optimum unknown"));
  if (visit === "r" || visit === "*") found.push(tag("repeated"));
  if (visit === "b" || visit === "*") found.push(tag("back in an earlier state"));
  return found;
}
function drawRequest(request) {
  const blocks = request.added.filter(m => !m.known).map(m => message(m.role, m.content));
  if (request.answer !== null) blocks.push(message("assistant", request.answer, request.finish === "length" ? "cut at the limit of tokens" : ""));
  else blocks.push(tag(`no reply: ${request.finish}`, "bad"));
  if (request.purpose !== "turn") {
    const details = fold(`Separate request: ${request.purpose}`, () => blocks);
    details.classList.add("message", "separate");
    return [details];
  }
  const all = request.messages.length, label = `All ${all} messages of this request${request.cut ? ", without earlier ones that the history leaves out" : ""}`;
  // Where the history is whole, the messages above are those of the request.
  if (request.cut || (!isWhole() && all > request.added.length)) {
    const exact = fold(label, () => request.messages.map(m => message(m.role, m.content)));
    exact.classList.add("exact");
    blocks.splice(request.answer !== null ? -1 : blocks.length, 0, exact);
  }
  return blocks;
}
function fold(label, content) {
  const details = make("details", "", make("summary", "", label));
  details.ontoggle = () => { if (details.open && details.children.length === 1) details.append(...content()); };
  return details;
}
function message(role, content, note) {
  const lines = content.split("\n"), head = make("span", "role", role);
  if (note) head.append(" ", tag(note, "bad"));
  if (role === "system" && content.length > 200) {
    const details = make("details", "message system", make("summary", "", head, ` ${lines.length} lines: ${lines[0].slice(0, 80)}…`), make("pre", "", content));
    return details;
  }
  const text = make("pre", ""), block = make("div", "message " + role, head, text);
  if (lines.length > LONG || content.length > 80 * LONG) {
    const short = lines.slice(0, SHOWN).join("\n").slice(0, 80 * SHOWN);
    const button = make("button", "unfold", `Show all ${lines.length} lines (${content.length.toLocaleString("en")} characters)`);
    text.textContent = short + " …";
    button.onclick = () => { text.textContent = content; button.remove(); };
    block.append(button);
  } else text.textContent = content;
  return block;
}
function go(to) { if (episode && !isWhole()) { turn = Math.max(0, Math.min(episode.turns.length, to)); draw(); } }

$("entry").onchange = pickEntry; $("agent").onchange = pickAgent; $("outcome").onchange = $("find").oninput = pickRows;
$("more").onclick = addRows; $("whole").onclick = () => { whole = !isWhole(); draw(); };
$("slider").oninput = () => go(+$("slider").value); $("previous").onclick = () => go(turn - 1); $("next").onclick = () => go(turn + 1);
document.addEventListener("keydown", ev => { if (/SELECT|INPUT/.test(ev.target.tagName)) return; if (ev.key === "ArrowLeft") go(turn - 1); if (ev.key === "ArrowRight") go(turn + 1); });
(async () => {
  cells = [...document.querySelectorAll("script.cell")];
  texts = await unpack($("texts"));
  fill($("entry"), unique(cells.map(c => c.dataset.entry)));
  $("second").hidden = unique(cells.map(c => c.dataset.agent)).length < 2;
  await pickEntry();
})();
