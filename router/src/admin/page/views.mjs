// Kinds, stores, clients and slow requests as tables.

import { el, replaceIfNew, setText } from "./dom.mjs";
import { bytes, clock, count, duration, percent, plural, rate } from "./format.mjs";
import { Table } from "./table.mjs";
import { diskOf, kindRows, lagOf, standbysOf, troubleOf } from "./words.mjs";

export function kinds(app) {
  const table = new Table({
    id: "kinds-table",
    label: "Kinds",
    key: (row) => row.kind,
    sort: { at: 4, descending: true },
    columns: [
      {
        label: "Kind",
        value: (row) => row.kind,
        fill: (cell, row) => replaceIfNew(cell, row.kind, () => [link(app, row.kind)]),
      },
      { label: "Stores", value: (row) => row.stores.join(", ") },
      { label: "Keys", value: (row) => row.keys, text: (row) => count(row.keys), number: true },
      { label: "Size", value: (row) => row.bytes, text: (row) => bytes(row.bytes), number: true },
      { label: "Calls/s", value: (row) => row.opsPerSecond, text: (row) => rate(row.opsPerSecond), number: true },
      { label: "Failed/s", value: (row) => row.failedPerSecond, text: (row) => rate(row.failedPerSecond), number: true },
      { label: "Mean time", value: (row) => row.latency, text: (row) => duration(row.latency), number: true },
      { label: "Traffic/s", value: (row) => row.bytesPerSecond, text: (row) => bytes(row.bytesPerSecond), number: true },
      { label: "Written/s", value: (row) => row.writtenPerSecond, text: (row) => bytes(row.writtenPerSecond), number: true },
      { label: "History", value: (row) => row.historyBytes, text: (row) => bytes(row.historyBytes), number: true },
      { label: "Watches", value: (row) => row.watches, text: (row) => count(row.watches), number: true },
      { label: "Calls", value: (row) => row.calls, text: (row) => count(row.calls), number: true },
      { label: "Ranges", value: (row) => row.ranges, text: (row) => count(row.ranges), number: true },
    ],
  });
  return {
    id: "kinds",
    title: "Kinds",
    element: el("div", {}, el("h2", { textContent: "Kinds" }), table.element),
    update: ({ look, rates }) => table.update(kindRows(look, rates.kinds)),
  };
}

function link(app, kind) {
  return el("button", { type: "button", className: "link", on: { click: () => app.openKind(kind) } }, kind);
}

/** The state of a store: a word, and a mark that is not a colour alone. */
function fillState(cell, store) {
  const well = store.state === "up" && !store.trouble;
  replaceIfNew(cell, [store.state, well], () => [
    el("span", { className: "state", data: { well: String(well) }, textContent: `${well ? "●" : "▲"} ${store.state}` }),
  ]);
}

function fillUsed(cell, store) {
  const load = store.load;
  const quota = load?.quotaBytes;
  const text = load ? bytes(load.heldBytes) + (quota ? ` of ${bytes(quota)}` : "") : "";
  replaceIfNew(cell, text, () => [
    text,
    quota ? el("meter", { min: 0, max: quota, low: quota * 0.75, high: quota * 0.9, optimum: 0, value: load.heldBytes,
      "aria-label": `${percent(load.heldBytes, quota)} of the quota of ${store.name}` }) : null,
  ].filter((part) => part !== null));
}

export function storesTable(id) {
  return new Table({
    id,
    label: "Stores",
    key: (row) => row.name,
    sort: { at: 0, descending: false },
    columns: [
      { label: "Store", value: (row) => row.name, text: (row) => row.name + (row.default ? " (default)" : "") },
      { label: "State", value: (row) => row.state, fill: fillState },
      { label: "Keys", value: (row) => row.load?.keys, text: (row) => count(row.load?.keys), number: true },
      { label: "Used", value: (row) => row.load?.heldBytes, fill: fillUsed, number: true },
      { label: "Lag", value: lagOf },
      { label: "Disk", value: diskOf },
      { label: "Standbys", value: standbysOf },
      { label: "Trouble", value: troubleOf },
    ],
  });
}

export function stores() {
  const table = storesTable("stores-table");
  const list = el("div", { className: "cards" });
  return {
    id: "stores",
    title: "Stores",
    element: el("div", {}, el("h2", { textContent: "Stores" }), table.element, el("h3", { textContent: "In detail" }), list),
    update({ look }) {
      table.update(look.stores);
      replaceIfNew(list, look.stores.map(facts), () => look.stores.map(card));
    },
  };
}

function facts(store) {
  const load = store.load;
  return [
    ["Type", store.slot === null ? store.type : `${store.type}, slot ${store.slot}`],
    ["Version", store.version ? `${store.version}, start ${store.incarnation}` : "not known"],
    ["Endpoints", store.endpoints.join(", ")],
    ["UUID", store.uuid ?? "not known"],
    ["Clock", store.clockOffsetSeconds === null ? "not known" : `${duration(store.clockOffsetSeconds)} off`],
    ["Last checkpoint", load?.checkpointAt ? `at ${clock(load.checkpointAt)}` : "none since the start"],
    ["Sizes", load && load.ageSeconds > 5 ? `as of ${duration(load.ageSeconds)} ago` : (store.problem ?? "as of now")],
    ...(store.members ?? []).map((member) => [`Member ${member.endpoint}`, standbysOf({ members: [member, member] }) || "serves"]),
  ];
}

function card(store) {
  const rows = facts(store).flatMap(([name, text]) => [el("dt", { textContent: name }), el("dd", { textContent: text })]);
  return el("section", { className: "card" }, el("h4", { textContent: store.name }), el("dl", {}, ...rows));
}

export function clients() {
  const table = new Table({
    id: "clients-table",
    label: "Clients with the most calls",
    key: (row) => row.client,
    sort: { at: 2, descending: true },
    empty: "Nobody has called yet.",
    columns: [
      { label: "Client", value: (row) => row.client },
      { label: "Connections", value: (row) => row.connections, text: (row) => count(row.connections), number: true },
      { label: "Calls/s", value: (row) => row.perSecond, text: (row) => rate(row.perSecond), number: true },
      { label: "Calls", value: (row) => row.calls, text: (row) => count(row.calls), number: true },
      { label: "Failed", value: (row) => row.failed, text: (row) => count(row.failed), number: true },
      { label: "Received", value: (row) => row.receivedBytes, text: (row) => bytes(row.receivedBytes), number: true },
      { label: "Sent", value: (row) => row.sentBytes, text: (row) => bytes(row.sentBytes), number: true },
      { label: "Mean time", value: (row) => row.mean, text: (row) => duration(row.mean), number: true },
    ],
  });
  return {
    id: "clients",
    title: "Clients",
    element: el(
      "div",
      {},
      el("h2", { textContent: "Clients" }),
      el("p", { className: "muted", textContent: "By the name in their certificates, or else by their addresses." }),
      table.element,
    ),
    update({ look, rates }) {
      const row = (client) => ({
        ...client,
        perSecond: rates.clients.perSecond(client.client, "calls"),
        mean: client.calls ? client.seconds / client.calls : null,
      });
      table.update(look.clients.map(row));
    },
  };
}

export function slow() {
  const table = new Table({
    id: "slow-table",
    label: "Slow requests",
    key: (row) => JSON.stringify([row.at, row.client, row.key, row.seconds]),
    sort: { at: 0, descending: true },
    empty: "No call has taken 250 ms.",
    columns: [
      { label: "Ended", value: (row) => row.at, text: (row) => clock(row.at) },
      { label: "Took", value: (row) => row.seconds, text: (row) => duration(row.seconds), number: true },
      { label: "Verb", value: (row) => row.verb },
      { label: "Kind", value: (row) => row.kind },
      { label: "Key", value: (row) => row.key },
      { label: "Answer", value: (row) => row.code },
      { label: "Sent", value: (row) => row.sentBytes, text: (row) => bytes(row.sentBytes), number: true },
      { label: "Client", value: (row) => row.client },
    ],
  });
  const said = el("p", { className: "muted" });
  return {
    id: "slow",
    title: "Slow requests",
    element: el("div", {}, el("h2", { textContent: "Slow requests" }), said, table.element),
    update({ look }) {
      setText(said, `The last ${plural(look.slow.length, "call")} that took 250 ms or more at this router.`);
      table.update(look.slow);
    },
  };
}
