"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
// Colors of values, from low to high. Their lightness ascends, so that they can be told apart without hues, too.
const COLORS = [[27, 42, 107], [74, 85, 131], [128, 128, 125], [185, 168, 95], [255, 227, 77]];
const KEYS = { right: "ArrowRight", left: "ArrowLeft", down: "ArrowDown", up: "ArrowUp" };
const SHOWN = 12; // episodes whose names are listed
let sources = [], tree = null, selected = 0, wide = null, groups = [];

function draw(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const short = (text, length) => { const flat = text.trim().replace(/\s*\n\s*/g, " · ").replace(/\s+/g, " "); return flat.length > length ? flat.slice(0, Math.max(1, length - 1)) + "…" : flat; };
const compact = value => Math.abs(value) >= 100 ? value.toFixed(0).replace("-", "−") : String(+value.toFixed(2)).replace("-", "−");

// ------------------------------------------------------------------ values and texts of nodes

function channels(value) {
  const [low, high] = tree.range, t = high > low ? clamp((value - low) / (high - low), 0, 1) * (COLORS.length - 1) : 2;
  const k = Math.min(Math.floor(t), COLORS.length - 2);
  return COLORS[k].map((c, i) => Math.round(c + (COLORS[k + 1][i] - c) * (t - k)));
}
const exact = value => number(+value.toFixed(3));
const color = value => `rgb(${channels(value).join(" ")})`;
function textOn(value) {
  const [r, g, b] = channels(value).map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b > .179 ? "#000" : "#fff";
}
const node = index => tree.nodes[index];
const action = index => { const steps = node(index).steps[0]; return steps.length ? steps[0][0] || "(no action)" : ""; };
function title(index) {
  const n = node(index), last = n.depth + n.steps.length - 1;
  if (!index) return "Start";
  return n.steps.length > 1 ? `Steps ${n.depth} to ${last}: ${action(index)} …` : `Step ${n.depth}: ${action(index)}`;
}
const children = index => tree.edges.filter(edge => edge[0] === index);
const parents = index => tree.edges.filter(edge => edge[1] === index);
const heaviest = edges => edges.reduce((best, edge) => best && best[2].length >= edge[2].length ? best : edge, null);
const divergence = index => tree.divergences.find(one => one[0] === index);
const grafts = index => tree.grafts.filter(one => one[0] === index);
const solved = ends => ends.filter(e => tree.episodes[e][2]).length;
function caption(index, letters) {
  const count = node(index).steps.length;
  if (!index) return "start";
  if (count > 1) return letters < 8 ? `+${count}` : `${count} steps`;
  const text = node(index).steps[0].length ? node(index).steps[0][0][0] : "";
  if (letters >= 11) return short(action(index), letters);
  // In little room, only the first of several actions.
  return text ? short(text.includes("\n") ? text.split("\n")[0].slice(0, letters - 1) + "…" : text, Math.max(letters, 3)) : "–";
}
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
function describe(index) {
  const n = node(index), parts = [title(index), `${n.episodes.length} of ${tree.episodes.length} episodes`, `${tree.value} ${compact(n.q)}`];
  if (n.ends.length) parts.push(`${n.ends.length} end here, ${solved(n.ends)} solved`);
  if (divergence(index)) parts.push("divergence");
  if (grafts(index).length) parts.push("corrected");
  return parts.join("; ").slice(0, 300);
}

// ------------------------------------------------------------------ picture

function place() {
  // Time runs to the right on a wide screen, and down on a narrow one.
  const width = $("graph").clientWidth, layers = Math.max(...tree.nodes.map(n => n.at[0])), lanes = Math.max(0, ...tree.nodes.map(n => n.at[1]), ...tree.edges.flatMap(e => e[3].map(p => p[1])));
  wide = width >= 620;
  if (wide) {
    const step = layers ? clamp((width - 130) / layers, 58, 190) : 0, lane = 64;
    return { step, room: step, width: 130 + step * layers, height: 90 + lane * lanes, at: ([layer, y]) => [60 + step * layer, 34 + lane * y] };
  }
  const lane = lanes ? clamp((width - 60) / lanes, 34, 110) : 0, step = 76, used = 58 + lane * lanes, shift = Math.max(0, (width - used) / 2);
  return { step, room: lane || 110, width: Math.max(width - 2, used), height: 92 + step * layers, at: ([layer, y]) => [29 + shift + lane * y, 30 + step * layer] };
}
function drawGraph() {
  const { room, width, height, at } = place(), total = tree.episodes.length;
  const best = new Set(tree.divergences.map(one => `${one[0]} ${one[1]}`)), worst = new Set(tree.divergences.map(one => `${one[0]} ${one[2]}`));
  const lines = tree.edges.map(([from, to, taken, route]) => {
    const points = route.map(at);
    let d = `M${points[0].join(" ")}`;
    for (let k = 1; k < points.length; k++) {
      const [x0, y0] = points[k - 1], [x, y] = points[k];
      d += wide ? ` C${(x0 + x) / 2} ${y0} ${(x0 + x) / 2} ${y} ${x} ${y}` : ` C${x0} ${(y0 + y) / 2} ${x} ${(y0 + y) / 2} ${x} ${y}`;
    }
    const kind = best.has(`${from} ${to}`) ? "best" : worst.has(`${from} ${to}`) ? "worst" : "";
    const line = draw("path", { d, class: kind, "stroke-width": (1.2 + 7 * taken.length / total).toFixed(1) });
    line.append(draw("title", {}, `${taken.length} of ${node(from).episodes.length} episodes`));
    return line;
  });
  groups = tree.nodes.map((n, index) => {
    const [x, y] = at(n.at), r = 8 + 8 * Math.sqrt(n.episodes.length / total), folded = n.steps.length > 1, w = folded ? r + 8 : r;
    const shape = folded ? draw("rect", { class: "shape", x: -w, y: -r, width: 2 * w, height: 2 * r, rx: r, fill: color(n.q) }) : draw("circle", { class: "shape", r, fill: color(n.q) });
    const group = draw("g", { class: "node", role: "button", tabindex: -1, "aria-pressed": false, "aria-label": describe(index), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    group.append(draw("title", {}, describe(index)), draw("rect", { x: -Math.max(w, 14), y: -Math.max(r, 14), width: 2 * Math.max(w, 14), height: 2 * Math.max(r, 14), fill: "transparent" }));
    group.append(draw("rect", { class: "halo", x: -w - 7, y: -r - 7, width: 2 * w + 14, height: 2 * r + 14, rx: r + 7 }));
    if (divergence(index)) group.append(draw("rect", { class: "ring", x: -w - 3.5, y: -r - 3.5, width: 2 * w + 7, height: 2 * r + 7, rx: r + 3.5 }));
    group.append(shape, draw("text", { class: "count", "text-anchor": "middle", y: 4, fill: textOn(n.q) }, String(n.episodes.length)));
    group.querySelector(".count").style.fill = textOn(n.q);
    if (grafts(index).length) group.append(draw("path", { class: "graft", d: `M${w + 2} ${-r - 9} l7 7 l-7 7 l-7 -7 Z` }));
    group.append(draw("text", { "text-anchor": "middle", y: r + 19 }, caption(index, Math.floor(Math.min(room, 2 * x, 2 * (width - x)) / 6) - 1)));
    const marks = [[solved(n.ends), "✓", "good"], [n.ends.length - solved(n.ends), "✗", "bad"]].filter(one => one[0]);
    const second = draw("text", { class: "soft", "text-anchor": "middle", y: r + 32 }, compact(n.q));
    for (const [count, mark, kind] of marks) second.append(" ", draw("tspan", { class: kind }, count > 1 ? `${mark}${count}` : mark));
    group.append(second);
    group.onclick = () => select(index);
    group.onkeydown = event => move(event, index);
    return group;
  });
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Tree of ${total} episodes with ${tree.nodes.length} states. The arrow keys move between states.` }, ...lines, ...groups);
  $("graph").replaceChildren(picture);
  mark();
}
function mark() {
  const chosen = $("tree-episode").value, on = members => chosen === "" || members.includes(+chosen);
  groups.forEach((group, index) => {
    group.setAttribute("aria-pressed", index === selected);
    group.setAttribute("tabindex", index === selected ? 0 : -1);
    group.classList.toggle("faded", !on(node(index).episodes));
  });
  $("graph").querySelectorAll("svg > path").forEach((line, k) => line.classList.toggle("faded", !on(tree.edges[k][2])));
}
function move(event, index) {
  const { key } = event, [ahead, back, after, before] = wide ? [KEYS.right, KEYS.left, KEYS.down, KEYS.up] : [KEYS.down, KEYS.up, KEYS.right, KEYS.left];
  let to = null;
  if (key === "Enter" || key === " ") to = index;
  else if (key === "Home") to = 0;
  else if (key === ahead) { const edge = heaviest(children(index)); to = edge ? edge[1] : index; }
  else if (key === back) { const edge = heaviest(parents(index)); to = edge ? edge[0] : index; }
  else if (key === after || key === before) {
    const layer = tree.nodes.map((n, k) => k).filter(k => node(k).at[0] === node(index).at[0]).sort((a, b) => node(a).at[1] - node(b).at[1]);
    to = layer[clamp(layer.indexOf(index) + (key === after ? 1 : -1), 0, layer.length - 1)];
  }
  if (to === null) return;
  event.preventDefault();
  event.stopPropagation(); // The viewer of episodes uses the arrow keys, too.
  select(to);
  groups[to].focus({ preventScroll: true });
  groups[to].scrollIntoView({ block: "nearest", inline: "nearest" });
}

// ------------------------------------------------------------------ the selected node

function select(index) { selected = index; mark(); drawNode(); }
function value(index) {
  const dot = make("i", "swatch");
  dot.style.background = color(node(index).q);
  return make("span", "", dot, `${tree.value} ${exact(node(index).q)}`);
}
function link(index, text) {
  const button = make("button", "link", text);
  button.onclick = () => { select(index); groups[index].scrollIntoView({ block: "nearest", inline: "nearest" }); };
  return button;
}
function names(episodes) {
  const shown = episodes.slice(0, SHOWN).map(e => tag(`${tree.episodes[e][2] ? "✓" : "✗"} ${tree.episodes[e][0]}: ${exact(tree.episodes[e][1])}`, tree.episodes[e][2] ? "good" : "bad"));
  if (episodes.length > SHOWN) shown.push(tag(`and ${episodes.length - SHOWN} more`));
  return make("p", "", ...shown);
}
function block(role, kind, text) { return make("div", `message ${kind}`, make("span", "role", role), make("pre", "", text)); }
function drawStep([act, thought, observation, episodes], count) {
  const parts = [];
  if (count > 1) parts.push(make("h4", "", `${many(episodes.length, "episode")}: ${short(episodes.map(e => tree.episodes[e][0]).join(", "), 90)}`));
  if (thought) parts.push(block("thought or reply", "assistant", thought));
  parts.push(block("action", "agent", act || "(no action)"));
  if (observation) parts.push(block("observation after it", "environment", observation));
  return parts;
}
function endings(index) {
  const { ends } = node(index), won = solved(ends);
  return ends.length ? [tag(`${many(ends.length, "episode")} ${ends.length === 1 ? "ends" : "end"} here: ${won} solved`, won ? "good" : "bad")] : [];
}
function drawBranch(index, heading, kind) {
  const box = make("div", `branch ${kind}`, make("h4", "", heading), make("p", "soft", value(index), ` · ${many(node(index).episodes.length, "episode")}`));
  const steps = node(index).steps[0];
  if (steps.length) box.append(...drawStep(steps[0], 1));
  box.append(...endings(index), " ", link(index, "Go to this branch"));
  return box;
}
function drawDivergence(index) {
  const [, best, worst, gap] = divergence(index), parts = [make("h4", "", `Divergence: the best and the worst continuation differ by ${exact(gap)}`)];
  parts.push(make("div", "branches", drawBranch(best, `Best branch: ${short(action(best), 60)}`, "good"), drawBranch(worst, `Worst branch: ${short(action(worst), 60)}`, "bad")));
  for (const [, chosen, rejected, valid, reason] of grafts(index)) {
    parts.push(make("h4", "", "Correction of the worst branch ", tag(valid ? "trained on" : `not trained on${reason ? `: ${reason}` : ""}`, valid ? "good" : "bad")));
    parts.push(make("div", "branches grafted", make("div", "branch bad", make("h4", "", "Rejected"), make("pre", "rejected", rejected)), make("div", "branch good", make("h4", "", "Preferred"), make("pre", "chosen", chosen))));
  }
  return parts;
}
function drawNode() {
  const n = node(selected), panel = $("node"), shares = make("p", "", tag(`${n.episodes.length} of ${tree.episodes.length} episodes`), make("span", "tag", value(selected)));
  if (n.a !== null) shares.append(tag(`advantage ${n.a > 5e-4 ? "+" : ""}${exact(n.a)}`));
  shares.append(...endings(selected));
  const way = [];
  for (let edge = heaviest(parents(selected)); edge; edge = heaviest(parents(edge[0]))) way.unshift(edge[0]);
  panel.replaceChildren(make("h3", "", short(title(selected), 200)), shares);
  if (way.length) panel.append(make("nav", "way", ...way.flatMap(index => [link(index, index ? short(action(index), 30) : "start"), make("span", "", "→")]), make("b", "", short(action(selected), 30))));
  const others = parents(selected).filter(edge => edge !== heaviest(parents(selected)));
  if (others.length) panel.append(make("p", "way", "also reached from: ", ...others.map(edge => link(edge[0], edge[0] ? short(action(edge[0]), 30) : "start"))));
  if (divergence(selected)) panel.append(...drawDivergence(selected));
  const next = children(selected).sort((a, b) => node(b[1]).q - node(a[1]).q);
  if (next.length) panel.append(make("h4", "", "Next steps"), make("ul", "next", ...next.map(([, to, taken]) => make("li", "", link(to, short(action(to), 120)), value(to), make("span", "soft", `${taken.length} of ${n.episodes.length} episodes, weight ${exact(taken.length / n.episodes.length)}`)))));
  panel.append(make("h4", "", "Episodes through this state"), names(n.episodes));
  if (!selected) panel.append(block("first observation", "environment", tree.observation));
  n.steps.forEach((steps, k) => {
    if (n.steps.length > 1) panel.append(make("h4", "", `Step ${n.depth + k}`));
    for (const step of steps) panel.append(...drawStep(step, steps.length));
  });
}

// ------------------------------------------------------------------ choice of a tree

const labels = (kind, chosen) => unique(chosen.map(s => s.dataset[kind]));
const chosen = (...kinds) => sources.filter(s => kinds.every(kind => s.dataset[kind] === $(`tree-${kind}`).value));
function pickFirst() { fill($("tree-second"), labels("second", chosen("first"))); $("tree-second-label").hidden = labels("second", sources).length < 2; return pickSecond(); }
function pickSecond() {
  const found = chosen("first", "second");
  fill($("tree-third"), found.map(s => s.dataset.third));
  return pickThird();
}
async function pickThird() {
  const [source] = chosen("first", "second", "third"), loaded = await unpack(source);
  if (chosen("first", "second", "third")[0] !== source) return; // Another one was chosen meanwhile.
  tree = loaded;
  const count = tree.episodes.length, won = tree.episodes.filter(e => e[2]).length;
  $("tree-facts").textContent = [`${many(count, "episode")}, ${won} solved, ${many(tree.divergences.length, "divergence")}.`, ...tree.notes].join(" ");
  const [low, high] = tree.range;
  $("tree-low").textContent = low < high ? compact(low) : "all"; $("tree-high").textContent = compact(high); $("tree-value").textContent = tree.value;
  $("tree-folded").hidden = !tree.nodes.some(n => n.steps.length > 1);
  $("tree-diverging").hidden = !tree.divergences.length; $("tree-grafted").hidden = !tree.grafts.length;
  $("tree-scale").style.background = low < high ? `linear-gradient(to right, ${COLORS.map(c => `rgb(${c.join(" ")})`).join(", ")})` : color(low);
  $("tree-episode").value = "";
  fill($("tree-episode"), ["", ...tree.episodes.keys()], ["all", ...tree.episodes.map(([label, result, success]) => `${success ? "✓" : "✗"} ${label}: ${exact(result)}`)]);
  $("tree-episode").value = "";
  selected = (tree.grafts[0] || tree.divergences[0] || [0])[0];
  drawGraph();
  drawNode();
}
(async () => {
  sources = [...document.querySelectorAll("script.tree")];
  fill($("tree-first"), labels("first", sources));
  $("tree-first").onchange = pickFirst; $("tree-second").onchange = pickSecond; $("tree-third").onchange = pickThird; $("tree-episode").onchange = mark;
  await pickFirst();
  let width = $("graph").clientWidth;
  new ResizeObserver(() => { if (tree && Math.abs($("graph").clientWidth - width) > 8) { width = $("graph").clientWidth; drawGraph(); } }).observe($("graph"));
})();
})();
