// Dialogs before anything is changed: the plan of a change, and a request about a move.

import { ask } from "./api.mjs";
import { announce, el, setText } from "./dom.mjs";
import { bytes, count, duration } from "./format.mjs";
import { REQUESTS } from "./words.mjs";

/** Shows a dialog; `act` is done when it is confirmed, and what it throws is shown there. */
function open(title, content, confirm, act) {
  const dialog = document.getElementById("dialog");
  const problem = el("p", { role: "alert" });
  const close = () => dialog.close();
  const yes = confirm && el("button", { type: "button", id: "confirm", className: "primary", textContent: confirm });
  const no = el("button", { type: "button", id: "cancel", textContent: confirm ? "Cancel" : "Close", on: { click: close } });
  yes?.addEventListener("click", async () => {
    yes.disabled = true;
    setText(problem, "");
    try {
      announce(await act());
      close();
    } catch (error) {
      setText(problem, error.message);
      yes.disabled = false;
    }
  });
  const actions = el("div", { className: "actions" }, no, ...(yes ? [yes] : []));
  dialog.replaceChildren(el("h2", { id: "dialog-title", textContent: title }), ...content, problem, actions);
  dialog.showModal();
  no.focus();
}

const NAMES = { move: "Move", split: "Split", merge: "Merge", drain: "Drain" };

/** Asks for the plan of a change, shows it, and makes the change when that is confirmed. */
export async function confirmPlan(verb, body) {
  const planned = await ask(`/api/v1/${verb}?dryRun=All`, { method: "POST", body });
  const moves = planned.plan.moves;
  const changes = planned.objects.length > 0 || moves.length > 0;
  const problems = moves.flatMap((move) => move.problems);
  const content = [
    changes ? null : el("p", { textContent: "There is nothing to do: it is so already." }),
    ...problems.map((text) => el("p", { className: "problem", textContent: text })),
    ...moves.map(planOf),
    planned.objects.length ? el("h3", { textContent: "What is changed" }) : null,
    el("ul", {}, ...planned.objects.map(({ object, change }) => el("li", { textContent: `${object} ${change}` }))),
  ].filter((part) => part !== null);
  const what = body.kind ?? body.store;
  open(`Plan: ${verb} ${what}${body.to ? ` to ${body.to}` : ""}`, content, changes ? NAMES[verb] : null, async () => {
    const made = await ask(`/api/v1/${verb}`, { method: "POST", body });
    return made.moves.length ? `Move ${made.moves.join(", ")} has begun.` : "It is done; nothing moves.";
  });
}

function planOf(move) {
  const facts = [
    ["Keys", count(move.keys)],
    ["Size", bytes(move.bytes)],
    ["Takes about", duration(move.millis === null || move.millis === undefined ? null : move.millis / 1000)],
    ["Writes wait about", duration(move.pauseMicros === undefined ? null : move.pauseMicros / 1e6)],
    ["Switches", count(move.switches)],
  ];
  const legs = move.legs.map((leg) => el("li", { textContent: `${leg.from} → ${leg.to}` }));
  return el(
    "section",
    { className: "plan" },
    el("h3", { textContent: move.resource }),
    el("ul", {}, ...legs),
    el("dl", {}, ...facts.flatMap(([name, text]) => [el("dt", { textContent: name }), el("dd", { textContent: text })])),
    ...move.notes.map((text) => el("p", { textContent: text })),
  );
}

/** Asks something of a move, when that is confirmed. */
export function confirmRequest(move, request) {
  const id = move.metadata.name;
  const what = `${request} move ${id} of ${move.resource}`;
  const content = [el("p", { textContent: `The move is ${move.phase}. ${REQUESTS[request]}` })];
  open(`${what[0].toUpperCase()}${what.slice(1)}?`, content, request, async () => {
    await ask(`/api/v1/moves/${encodeURIComponent(id)}/${request}`, { method: "POST" });
    return `Asked to ${what}.`;
  });
}
