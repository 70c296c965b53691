"use strict";
const all = (selector, node = document) => [...node.querySelectorAll(selector)], at = (id) => document.getElementById(id);
const steps = all("section[data-step]"), fields = all("[data-key]"), tables = [{}];
const made = (name, text = "", more = {}) => Object.assign(document.createElement(name), { textContent: text, ...more });
const drawn = (name, more, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(more)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
};
const short = (value) => Number(value.toPrecision(3)).toLocaleString("en");
const first = new Map(fields.map((one) => [one, one.value]));
let step = 0, busy = false, again = false;

const chosen = () => ({
  changes: fields.filter((one) => !one.closest(".field[hidden]") && one.value !== first.get(one))
    .map((one) => [one.dataset.group, one.dataset.name, one.dataset.key, one.value]),
  left_out: all(".keep").filter((one) => !one.checked).map((one) => one.dataset.name),
  reviewed: at("reviewed").checked,
  about: Object.fromEntries(all("[data-about]").map((one) => [one.dataset.about, one.value])),
  ...Object.fromEntries(["unit", "bound", "epsilon", "delta"].map((id) => [id, at(id).value])), tables,
});
async function post(path, content) {
  try {
    const reply = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
    return reply.ok ? await reply.json() : { refused: await reply.text() };
  } catch { return { refused: "the wizard has stopped; start it again in its terminal" }; }
}
async function draft() {  // one request at a time, and the last choices at the end
  again = busy;
  if (busy) return;
  at("main").ariaBusy = busy = true;
  const found = await post("draft", chosen());
  at("main").ariaBusy = busy = false;
  show(found);
  if (again) draft();
}
function show(found) {
  at("refused").textContent = found.refused;
  for (const name of ["domain", "job"]) at(name).textContent = found[name] ?? "";
  const facts = new Map((found.attributes ?? []).map((one) => [one.name, `${one.kind}, ${one.cells} cells`]));
  for (const one of all("[data-facts]")) one.textContent = facts.get(one.dataset.facts) ?? "";
  at("text").textContent = found.plan?.text ?? "";
  const units = new Set((found.plan?.sets ?? []).map((one) => one.unit));
  at("errors").replaceChildren(...(units.size ? [curve(found.plan.curve)] : []), ...[...units].map((one) => bars(found.plan, one)));
}
function bars(plan, unit) {
  const table = made("table", "", { className: "bars" }), sets = plan.sets.filter((one) => one.unit === unit);
  const more = plan.count > plan.sets.length ? `, the ${plan.sets.length} largest of ${plan.count} tables` : "";
  table.append(made("caption", `Expected error of a cell, in ${unit}${more}`));
  for (const one of sets) {
    const row = table.insertRow(), bar = made("i"), track = made("span", "", { className: "track" });
    bar.style.width = `${100 * one.error / Math.max(...sets.map((other) => other.error))}%`;
    track.append(bar);
    row.append(made("th", one.attributes.join(" × ") || "the total", { scope: "row" }));
    Object.assign(row.insertCell(), { className: "bar" }).append(track);
    row.insertCell().append(`± ${short(one.error)}`);
  }
  return table;
}
function curve(points) {
  const figure = made("figure"), svg = drawn("svg", { viewBox: "0 0 360 190", "aria-hidden": "true" }), log = Math.log10;
  const own = Number(at("epsilon").value), ys = points.map((one) => log(one.error)), low = Math.min(...ys), high = Math.max(...ys);
  const x = (epsilon) => 50 + 290 * (log(epsilon) + 1) / (log(8) + 1), y = (error) => 160 - 140 * (log(error) - low) / (high - low || 1);
  for (const one of points) svg.append(drawn("circle", { cx: x(one.epsilon), cy: y(one.error), r: 2.5 }),
    drawn("text", { x: x(one.epsilon), y: 180, "text-anchor": "middle" }, String(one.epsilon)));
  for (const one of [points[0], points.at(-1)]) svg.append(drawn("text", { x: 44, y: y(one.error) + 4, "text-anchor": "end" }, short(one.error)));
  svg.append(drawn("polyline", { points: points.map((one) => `${x(one.epsilon)},${y(one.error)}`).join(" ") }));
  if (own >= 0.1 && own <= 8) svg.append(drawn("line", { x1: x(own), x2: x(own), y1: 15, y2: 165 }));
  figure.append(made("figcaption", "Error of all tables by ε; the line is at the chosen one"), svg);
  return figure;
}
function wanted() {
  at("wanted").replaceChildren(...tables.map((one, place) => {
    const text = !one.attributes ? "counts, a table for each column" : `${one.of ? `means of ${one.of}` : "counts"} by ${one.attributes.join(" × ") || "nothing, the total"}`;
    const row = made("li", `${text} `), button = made("button", "Remove", { type: "button", ariaLabel: `Remove ${text}` });
    button.onclick = () => { tables.splice(place, 1); wanted(); at("add").focus(); };
    row.append(button);
    return row;
  }));
  draft();
}
function go(to) {
  step = Math.min(Math.max(to, 0), steps.length - 1);
  steps.forEach((one, place) => { one.hidden = place !== step; });
  all("#steps button").forEach((one, place) => { one.ariaCurrent = place === step ? "step" : null; });
  at("back").disabled = !step;
  at("next").disabled = step === steps.length - 1;
  steps[step].querySelector("h2").focus();
}
async function write(replace) {
  const found = await post("write", { ...chosen(), replace }), lines = [];
  at("replace").hidden = !found.present;
  if (found.present) lines.push(made("p", `${found.present.join(" and ")} exist${found.present[1] ? "" : "s"}: replace?`));
  if (found.written) lines.push(made("p", `Written: ${found.written.join(", ")}`), made("pre", found.commands.join("\n")));
  if (found.refused) lines.push(made("p", found.refused, { className: "warning" }));
  at("outcome").replaceChildren(...lines);
}
function kinds() {
  for (const column of all(".column")) for (const one of all("[data-kinds]", column))
    one.hidden = !one.dataset.kinds.split(" ").includes(column.querySelector("[data-key=kind]").value);
}
for (const [place, one] of steps.entries()) at("steps").appendChild(made("li"))
  .append(made("button", one.dataset.step, { type: "button", onclick: () => go(place) }));
for (const [name, by] of [["back", -1], ["next", 1]]) at(name).onclick = () => go(step + by);
at("scale").oninput = () => { at("epsilon").value = Number((10 ** at("scale").value).toPrecision(2)); };
at("epsilon").oninput = () => { at("scale").value = Math.log10(at("epsilon").value); };
at("add").onclick = () => {
  const boxes = all("input:checked", at("by"));
  tables.push({ of: at("of").value, attributes: boxes.map((one) => one.value) });
  boxes.forEach((one) => { one.checked = false; });
  wanted();
};
at("write").onclick = () => write(false);
at("replace").onclick = () => write(true);
at("finish").onclick = async () => { await post("finish", {}); document.body.replaceChildren(made("main", "The wizard is finished; this page may be closed.")); };
document.forms[0].onsubmit = (event) => event.preventDefault();
document.forms[0].addEventListener("input", () => { kinds(); draft(); });
kinds(), wanted(), go(0);
