// What is wrong, what `kindred advise` decided, what the cluster does, its stores, and its moves.

import { Chart } from "./chart.mjs";
import { el, replaceIfNew, setText } from "./dom.mjs";
import { bytes, count, duration, moment, plural, rate } from "./format.mjs";
import { movesTable } from "./moves.mjs";
import { storesTable } from "./views.mjs";
import { adviceOf } from "./words.mjs";

const TILES = [
  ["calls a second", ({ rates }) => rate(rates.kinds.perSecond("*", "calls"))],
  ["failed a second", ({ rates }) => rate(rates.kinds.perSecond("*", "failed"))],
  ["mean time", ({ rates }) => duration(micros(rates.kinds.mean("*", "micros", "calls")))],
  ["traffic a second", ({ rates }) => bytes(rates.kinds.perSecond("*", "trafficBytes"))],
  ["keys", ({ look }) => count(sum(look.kinds, (kind) => kind.keys))],
  ["of data", ({ look }) => bytes(sum(look.kinds, (kind) => kind.bytes))],
  ["open watches", ({ look }) => count(sum(look.kinds, (kind) => kind.watches))],
  ["Kinds", ({ look }) => count(look.kinds.length)],
  ["partitions", ({ look }) => count(look.partitions)],
];

const micros = (value) => (value === null ? null : value / 1e6);
const sum = (rows, of) => rows.reduce((all, row) => all + (of(row) ?? 0), 0);

export function overview(app) {
  const alerts = el("ul", { id: "alerts", className: "alerts" });
  const well = el("p", { id: "well", className: "well", textContent: "Nothing is wrong." });
  const advice = el("ul", { id: "advice", className: "advice" });
  const advised = el("section", { hidden: true }, el("h2", { textContent: "Advice" }), advice);
  const tiles = TILES.map(() => el("dd"));
  const ops = new Chart("Calls in a second", rate);
  const latency = new Chart("Mean time of a call", (millis) => duration(millis / 1000));
  const stores = storesTable("overview-stores");
  const moves = movesTable(app, "overview-moves");
  const element = el(
    "div",
    {},
    el("h2", { textContent: "Alerts" }),
    well,
    alerts,
    advised,
    el("h2", { textContent: "Now" }),
    el(
      "dl",
      { className: "tiles" },
      ...TILES.map(([label], at) => el("div", {}, el("dt", { textContent: label }), tiles[at])),
    ),
    el("div", { className: "charts" }, ops.element, latency.element),
    el("h2", { textContent: "Stores" }),
    stores.element,
    el("h2", { textContent: "Moves" }),
    moves.element,
  );
  const showHeat = () => {
    const lines = app.heat.lines();
    ops.update(lines.times, lines.ops);
    latency.update(lines.times, lines.latency);
  };
  return {
    id: "overview",
    title: "Overview",
    element,
    badge: ({ look }) => look.alerts.length,
    update(state) {
      const shown = state.look.alerts;
      well.hidden = shown.length > 0;
      replaceIfNew(alerts, shown.map(({ id, level, text }) => [id, level, text]), () => shown.map(alert));
      shown.forEach((one, at) => setText(alerts.children[at].lastChild, one.forSeconds ? ` for ${duration(one.forSeconds)}` : ""));
      const told = state.look.advice ?? [];
      advised.hidden = told.length === 0;
      replaceIfNew(advice, told, () => told.map(decision));
      TILES.forEach(([, of], at) => setText(tiles[at], of(state)));
      stores.update(state.look.stores);
      const moving = state.look.moves.filter((move) => !move.over);
      moves.update([...moving, ...state.look.moves.filter((move) => move.over).slice(-5).reverse()]);
      showHeat();
    },
    heated: showHeat,
    redraw() {
      ops.redraw();
      latency.redraw();
    },
  };
}

function alert({ level, text }) {
  const word = level === "error" ? "Error" : "Warning";
  return el(
    "li",
    { data: { level } },
    el("strong", { textContent: word }),
    el("span", { textContent: text }),
    el("span", { className: "muted" }),
  );
}

function decision(one) {
  return el(
    "li",
    { data: { outcome: one.outcome } },
    el("span", { className: "muted", textContent: moment(one.at) }),
    el("span", { textContent: adviceOf(one) }),
    el("span", { className: "muted", textContent: `because ${one.why}` }),
  );
}

/** What is said aloud when the alerts change. */
export function spoken(alerts) {
  if (!alerts.length) return "Nothing is wrong any more.";
  return `${plural(alerts.length, "alert")}: ${alerts[0].text}`;
}
