// Moves: those that there are, what may be asked of them, and how one begins.

import { confirmPlan, confirmRequest } from "./dialogs.mjs";
import { el, replaceIfNew, setText } from "./dom.mjs";
import { Table } from "./table.mjs";
import { partOf, phaseOf, progressOf, requestsOf, stepsOf } from "./words.mjs";

export function movesTable(app, id) {
  return new Table({
    id,
    label: "Moves",
    key: (row) => row.metadata.name,
    empty: "No move is known.",
    rowClass: (row) => (row.over ? "over" : ""),
    columns: [
      { label: "Move", value: (row) => Number(row.metadata.name) },
      { label: "Kind", value: (row) => row.resource },
      { label: "From and to", value: stepsOf },
      { label: "Phase", value: (row) => row.phase, fill: fillPhase },
      { label: "Progress", value: progressOf },
      { label: "Ask", fill: (cell, row) => fillRequests(app, cell, row) },
    ],
  });
}

function fillPhase(cell, move) {
  const part = move.over ? null : partOf(move);
  replaceIfNew(cell, [move.phase, move.goal, part], () => [
    phaseOf(move),
    ...(part === null ? [] : [el("progress", { max: 1, value: part, "aria-label": `Way of move ${move.metadata.name}` })]),
  ]);
}

function fillRequests(app, cell, move) {
  const requests = app.role === "admin" ? requestsOf(move) : [];
  replaceIfNew(cell, requests, () =>
    requests.map((request) => {
      const click = () => confirmRequest(move, request);
      const label = `${request} move ${move.metadata.name}`;
      return el("button", { type: "button", "aria-label": label, data: { request }, on: { click } }, request);
    }),
  );
}

/** What a form can begin, with what it asks for. */
const VERBS = {
  move: { label: "move all of a Kind", fields: ["kind", "to", "hold"] },
  split: { label: "split a Kind at a name", fields: ["kind", "at", "to"] },
  merge: { label: "merge the ranges of a Kind", fields: ["kind", "to"] },
  drain: { label: "drain a store", fields: ["store", "to", "hold"] },
};

export function moves(app) {
  const table = movesTable(app, "moves-table");
  const form = beginForm();
  const note = el("p", { id: "may-not", className: "muted" });
  return {
    id: "moves",
    title: "Moves",
    element: el("div", {}, el("h2", { textContent: "Moves" }), note, form.element, el("h3", { textContent: "Known moves" }), table.element),
    badge: ({ look }) => look.moves.filter((move) => !move.over).length,
    update({ look }) {
      const may = app.role === "admin";
      setText(note, may ? "A plan changes nothing. What is begun here is the same as by the kindred command." : "You may look. Moves are begun and ended by those whose token or certificate has the role admin.");
      form.element.hidden = !may;
      if (may) form.update(look);
      table.update([...look.moves].reverse());
    },
  };
}

function beginForm() {
  const kinds = el("datalist", { id: "known-kinds" });
  const select = (id) => el("select", { id, name: id });
  const inputs = {
    kind: el("input", { id: "move-kind", required: true, autocomplete: "off", spellcheck: false }),
    at: el("input", { id: "move-at", required: true, autocomplete: "off", spellcheck: false }),
    store: select("move-store"),
    to: select("move-to"),
    hold: el("input", { id: "move-hold", type: "checkbox" }),
  };
  inputs.kind.setAttribute("list", "known-kinds");
  const labels = { kind: "Kind", at: "At the name", store: "Store", to: "To store", hold: "Wait before the switch" };
  const verb = el(
    "select",
    { id: "move-verb", on: { change: () => showFields() } },
    ...Object.entries(VERBS).map(([value, { label }]) => el("option", { value, textContent: label })),
  );
  const rows = Object.fromEntries(
    Object.entries(inputs).map(([name, input]) => [
      name,
      el("div", {}, el("label", { for: input.id, textContent: labels[name] }), input),
    ]),
  );
  const problem = el("p", { id: "move-problem", role: "alert" });
  const plan = el("button", { type: "submit", textContent: "Plan" });
  const element = el(
    "form",
    { id: "begin", hidden: true, "aria-label": "Begin a move", on: { submit: (event) => submit(event) } },
    el("div", {}, el("label", { for: "move-verb", textContent: "Do" }), verb),
    ...Object.values(rows),
    el("div", {}, plan),
    problem,
    kinds,
  );

  function showFields() {
    for (const [name, row] of Object.entries(rows)) {
      row.hidden = !VERBS[verb.value].fields.includes(name);
      // What is hidden is not asked for.
      inputs[name].disabled = row.hidden;
    }
  }

  function body() {
    const sent = {};
    for (const name of VERBS[verb.value].fields) {
      const input = inputs[name];
      const value = input.type === "checkbox" ? input.checked : input.value.trim();
      if (value) sent[name] = value;
    }
    return sent;
  }

  async function submit(event) {
    event.preventDefault();
    setText(problem, "");
    plan.disabled = true;
    try {
      await confirmPlan(verb.value, body());
    } catch (error) {
      setText(problem, error.message);
    } finally {
      plan.disabled = false;
    }
  }

  function fillStores(input, names, none) {
    const value = input.value;
    replaceIfNew(input, [names, none], () => [
      ...(none ? [el("option", { value: "", textContent: none })] : []),
      ...names.map((name) => el("option", { value: name, textContent: name })),
    ]);
    if (value && input.value !== value) input.value = value;
  }

  showFields();
  return {
    element,
    update(look) {
      const stores = look.stores.map((store) => store.name);
      fillStores(inputs.store, stores);
      fillStores(inputs.to, stores, "choose");
      const names = look.kinds.filter((kind) => kind.prefix).map((kind) => kind.kind);
      replaceIfNew(kinds, names, () => names.map((name) => el("option", { value: name })));
    },
  };
}
