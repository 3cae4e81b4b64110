// The key space as a map: each Kind over the last hour, or at each store; and one Kind in detail.

import { ask } from "./api.mjs";
import { Chart } from "./chart.mjs";
import { el, setText } from "./dom.mjs";
import { bytes, clock, count, duration, plural, rate } from "./format.mjs";
import { Grid } from "./grid.mjs";
import { METRICS } from "./heat.mjs";
import { Table } from "./table.mjs";
import { rangesOf } from "./words.mjs";

const OVER_TIME = {
  ops: { label: "Calls", format: (value) => `${rate(value)}/s` },
  bytes: { label: "Bytes", format: (value) => `${bytes(value)}/s` },
  latency: { label: "Latency", format: duration },
};
/** Of `[store, keys, live bytes, all bytes, written in a second]`. */
const BY_STORE = {
  size: { label: "Size", at: 3, unit: 1024, format: bytes },
  keys: { label: "Keys", at: 1, unit: 1, format: count },
  writes: { label: "Writes", at: 4, unit: 100, format: (value) => `${bytes(value)}/s` },
};

/** One of several, as radio buttons. `onChange` gets the chosen value. */
function choice(legend, name, options, onChange) {
  const inputs = Object.entries(options).map(([value, { label }], at) => {
    const input = el("input", { type: "radio", name, value, checked: at === 0, on: { change: () => onChange(value) } });
    return el("label", {}, input, label);
  });
  return el("fieldset", { className: "choice" }, el("legend", { textContent: legend }), ...inputs);
}

export function keyspace(app) {
  const chosen = { axis: "time", time: "ops", store: "size", order: "heat", filter: "" };
  let state = null;
  const grid = new Grid({ label: "Key space: Kinds over the last hour, or by store", onChoose: (kind) => detail.choose(kind) });
  const show = () => state && grid.update(model());
  const pick = (field) => (value) => {
    chosen[field] = value;
    overTime.hidden = chosen.axis !== "time";
    byStore.hidden = chosen.axis !== "store";
    show();
  };
  const axes = { time: { label: "over the last hour" }, store: { label: "by store" } };
  const orders = { heat: { label: "most first" }, name: { label: "by name" } };
  const overTime = choice("What", "heat-metric", OVER_TIME, pick("time"));
  const byStore = choice("What", "store-metric", BY_STORE, pick("store"));
  byStore.hidden = true;
  const filter = el("input", { id: "kind-filter", type: "search", on: { input: () => pick("filter")(filter.value) } });
  const detail = kindDetail(app, () => state);
  const summary = el("p", { id: "keyspace-summary", className: "muted" });
  const element = el(
    "div",
    {},
    el("h2", { textContent: "Key space" }),
    el(
      "div",
      { className: "controls" },
      choice("Kinds", "axis", axes, pick("axis")),
      overTime,
      byStore,
      choice("Order", "order", orders, pick("order")),
      el("div", {}, el("label", { for: "kind-filter", textContent: "Only Kinds with" }), filter),
    ),
    summary,
    grid.element,
    el("p", { className: "muted", textContent: "Arrow keys read the cells, Enter shows a Kind." }),
    detail.element,
  );

  function model() {
    const { look } = state;
    const names = new Set(look.kinds.map((kind) => kind.kind));
    const heats = chosen.axis === "time" ? app.heat.totals() : sizes(look);
    for (const kind of heats.keys()) names.add(kind);
    const rows = [...names].filter((name) => name.includes(chosen.filter)).sort();
    if (chosen.order === "heat") rows.sort((a, b) => (heats.get(b) ?? 0) - (heats.get(a) ?? 0));
    setText(summary, `${plural(rows.length, "Kind")}, ${plural(look.stores.length, "store")}, ${plural(look.partitions, "partition")}`);
    return chosen.axis === "time" ? ofTime(rows) : ofStores(rows, look);
  }

  function sizes(look) {
    const at = BY_STORE[chosen.store].at;
    return new Map(look.kinds.map((kind) => [kind.kind, kind.by.reduce((sum, one) => sum + one[at], 0)]));
  }

  function ofTime(rows) {
    const { format } = OVER_TIME[chosen.time];
    const heat = app.heat;
    return {
      name: chosen.time,
      rows,
      columns: heat.steps,
      value: (kind, step) => heat.value(kind, step, chosen.time),
      heading: (step) => clock(heat.steps[step].at),
      say(kind, step) {
        const at = heat.steps[step]?.at;
        if (at === undefined) return `${kind}: nothing is known of the last hour yet`;
        return `${kind}, ${clock(at - heat.stepSeconds)} to ${clock(at)}: ${told(heat, kind, step)}`;
      },
      most: heat.most(rows, chosen.time),
      unit: METRICS[chosen.time].unit,
      width: 3,
      follows: true,
      format,
    };
  }

  function ofStores(rows, look) {
    const { at, unit, format } = BY_STORE[chosen.store];
    const cells = new Map(look.kinds.map((kind) => [kind.kind, new Map(kind.by.map((one) => [one[0], one]))]));
    const stores = look.stores.map((store) => store.name);
    const cell = (kind, store) => cells.get(kind)?.get(stores[store]);
    const values = look.kinds.flatMap((kind) => kind.by.map((one) => one[at]));
    return {
      name: chosen.store,
      rows,
      columns: stores,
      value: (kind, store) => cell(kind, store)?.[at] ?? null,
      heading: (store) => stores[store],
      say(kind, store) {
        const found = cell(kind, store);
        if (!found) return `${kind} at ${stores[store]}: nothing`;
        const [, keys, live, all, written] = found;
        return `${kind} at ${stores[store]}: ${count(keys)} keys, ${bytes(live)}, with history ${bytes(all)}, ${bytes(written)}/s written`;
      },
      most: values.reduce((most, value) => Math.max(most, value), 0),
      unit,
      width: 24,
      format,
    };
  }

  return {
    id: "keyspace",
    title: "Key space",
    element,
    update(next) {
      state = next;
      show();
      detail.update(next);
    },
    heated() {
      show();
      detail.heated();
    },
    redraw() {
      grid.layout();
      detail.redraw();
    },
    open: (kind) => detail.choose(kind),
  };
}

function told(heat, kind, step) {
  const value = (metric) => OVER_TIME[metric].format(heat.value(kind, step, metric));
  return `${value("ops")}, ${value("bytes")}, mean ${value("latency")}`;
}

/** One Kind: its numbers, its traffic over the last hour, and its ranges. */
function kindDetail(app, current) {
  let [kind, partitions, generation] = [null, [], null];
  const title = el("h3", { id: "kind-title" });
  const numbers = el("p");
  const ops = new Chart("Calls in a second", rate);
  const latency = new Chart("Mean time of a call", (millis) => duration(millis / 1000));
  const ranges = new Table({
    id: "ranges",
    label: "Ranges of the Kind",
    key: (row) => row.start,
    empty: "No partition is known.",
    columns: [
      { label: "From", value: (row) => row.start },
      { label: "To", value: (row) => row.end ?? "the end" },
      { label: "Stores", value: (row) => row.stores.join(", ") + (row.ring ? " (ring)" : "") },
      { label: "Since generation", value: (row) => row.epoch, number: true },
    ],
  });
  const problem = el("p", { role: "alert" });
  const element = el("section", { id: "kind", hidden: true, "aria-labelledby": "kind-title" }, title, numbers,
    el("div", { className: "charts" }, ops.element, latency.element), el("h4", { textContent: "Ranges" }), problem, ranges.element);

  async function load() {
    const wanted = current()?.look.generation;
    if (generation === wanted) return;
    generation = wanted;
    try {
      ({ partitions } = await ask("/api/v1/partitions"));
      setText(problem, "");
    } catch (error) {
      generation = null;
      setText(problem, `The ranges are not known: ${error.message}`);
    }
    const found = current()?.look.kinds.find((one) => one.kind === kind);
    ranges.update(rangesOf(partitions, found?.prefix));
  }

  function show() {
    const look = current()?.look;
    if (!kind || !look) return;
    const found = look.kinds.find((one) => one.kind === kind);
    setText(title, kind);
    const known = found && `${found.prefix ?? "no prefix"}: ${count(found.keys)} keys, ${bytes(found.bytes)}, on ${found.stores.join(", ") || "no store"}`;
    setText(numbers, known ?? "It has no keys and no traffic now.");
    ranges.update(rangesOf(partitions, found?.prefix));
    load();
  }

  function lines() {
    if (!kind) return;
    const shown = app.heat.lines(kind);
    ops.update(shown.times, shown.ops);
    latency.update(shown.times, shown.latency);
  }

  return {
    element,
    choose(name) {
      kind = name;
      element.hidden = false;
      show();
      lines();
    },
    update: show,
    heated: lines,
    redraw() {
      ops.redraw();
      latency.redraw();
    },
  };
}
