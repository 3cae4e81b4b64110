// What the API's objects say, in words. No DOM here.

import { bytes, duration, moment } from "./format.mjs";

/** A member of a store with standbys. */
export function ofMember(member) {
  if (member.problem) return member.problem;
  if (member.role === "primary") {
    return member.inDoubt ? "waits: a standby may have been promoted" : `serves, term ${member.term}`;
  }
  if (member.role !== "standby") return String(member.role);
  if (member.counts) {
    const silent = member.silentMillis ?? 0;
    return silent < 1000 ? "in sync" : `silent for ${silent} ms`;
  }
  if (!member.whole) return "copies";
  if (!member.connected) return "not connected to the primary";
  const behind = member.batchesBehind;
  return behind === null || behind === undefined ? "follows" : `follows, ${behind} batches behind`;
}

/** The standbys of a store. */
export function standbysOf(store) {
  const members = store.members ?? [];
  if (members.length < 2) return store.standbyTrouble ?? "none";
  const said = members.filter((member) => member.role !== "primary").map(ofMember);
  return [...said, ...(store.standbyTrouble ? [store.standbyTrouble] : [])].join("; ");
}

/** How far a store is behind: events that it holds back, what is not on its disk, its clock. */
export function lagOf(store) {
  const said = [];
  if (store.lagSeconds) said.push(`events ${duration(store.lagSeconds)}`);
  if (store.load?.notDurableMillis) said.push(`disk ${duration(store.load.notDurableMillis / 1000)}`);
  if (Math.abs(store.clockOffsetSeconds ?? 0) >= 0.1) said.push(`clock ${duration(store.clockOffsetSeconds)}`);
  return said.join(", ") || "none";
}

/** How a store's disk does. */
export function diskOf(store) {
  const load = store.load;
  if (!load) return "";
  if (load.failing) return `its log fails: ${load.failing}`;
  const said = [];
  if (load.walBytes) said.push(`log ${bytes(load.walBytes)}`);
  if (load.fsyncP99Micros) said.push(`fsync p99 ${duration(load.fsyncP99Micros / 1e6)}`);
  if (load.notDurableBytes) said.push(`${bytes(load.notDurableBytes)} to come`);
  return said.join(", ") || "nothing on disk";
}

/** What is wrong with a store, beside its state. */
export function troubleOf(store) {
  return [store.trouble, store.state === "up" ? store.problem : store.lastError].filter(Boolean).join("; ");
}

/** Where a move goes, without what is said twice. */
export function stepsOf(move) {
  return [...new Set(move.legs.map((leg) => `${leg.from} → ${leg.to}`))].join(", ");
}

/** How far a move is. */
export function progressOf(move) {
  const progress = move.progress;
  if (move.over) return move.reason ?? "";
  if (!progress) return "waits for a coordinator";
  const failing = progress.failing?.[0];
  if (failing) return `${failing.step} failed ${failing.times} times: ${failing.reason}`;
  const said = [];
  if (progress.keysCopied) said.push(`${progress.keysCopied} keys, ${bytes(progress.bytesCopied)} copied`);
  if (progress.lagMicros !== undefined) said.push(`${duration(progress.lagMicros / 1e6)} behind`);
  if (progress.pauseMicros !== undefined) said.push(`pause ${duration(progress.pauseMicros / 1e6)}`);
  if (move.reason) said.push(move.reason);
  return said.join("; ") || "begins";
}

const ORDER = ["Copying", "CatchingUp", "Verifying", "Ready", "Switching", "Switched", "Completing", "Done"];

/** A move's phase, and whether that is on its way back. */
export function phaseOf(move) {
  if (move.goal !== "back" || move.over) return move.phase;
  return move.phase === "Switched" ? "Switched back" : `${move.phase}, on its way back`;
}

/** The part of its way that a move has come, from 0 to 1; `null` for one that is taken back. */
export function partOf(move) {
  const at = ORDER.indexOf(move.phase);
  return at < 0 ? null : at / (ORDER.length - 1);
}

/** What may be asked of a move in its phase. The router refuses the rest, and says why. */
export function requestsOf(move) {
  if (move.over || ["Completing", "Aborting"].includes(move.phase)) return [];
  if (move.phase === "Switched") return ["reverse", "complete"];
  if (move.goal === "abort") return ["reverse"];
  return move.phase === "Ready" ? ["switch", "abort"] : ["abort"];
}

/** What a request does, for those who are asked whether they mean it. */
export const REQUESTS = {
  switch: "It then serves from the new store as soon as both agree.",
  reverse: "The keys go back to the store that they came from.",
  complete: "The old store forgets the keys, and there is no way back but another move.",
  abort: "The keys stay where they are, and what was copied is dropped.",
};

/** The rows of Kinds of a look, with their rates. */
export function kindRows(look, rates) {
  return look.kinds.map((kind) => {
    const name = kind.kind;
    const mean = rates.mean(name, "micros", "calls");
    return {
      ...kind,
      opsPerSecond: rates.perSecond(name, "calls"),
      failedPerSecond: rates.perSecond(name, "failed"),
      bytesPerSecond: rates.perSecond(name, "trafficBytes"),
      latency: mean === null ? null : mean / 1e6,
    };
  });
}

/** The counters of a look for rates: of each Kind, and of all together as `*`. */
export function counters(look) {
  const fields = ["calls", "failed", "trafficBytes", "micros", "messages"];
  const all = Object.fromEntries(fields.map((field) => [field, 0]));
  const counted = new Map([["*", all]]);
  for (const kind of look.kinds) {
    counted.set(kind.kind, kind);
    for (const field of fields) all[field] += kind[field];
  }
  return counted;
}

/** The ranges of a Kind, of the answer of `/api/v1/partitions`. `prefix` is the Kind's. */
export function rangesOf(partitions, prefix) {
  if (!prefix) return [];
  // The key that is the prefix without its slash is a partition too, and no range of names.
  const inside = partitions.filter((one) => one.kind === prefix && one.start.startsWith(prefix));
  if (inside.length) return inside;
  // No partition is of this Kind alone: it is in one with others.
  return partitions.filter((one) => one.start <= prefix && (one.end === null || prefix < one.end));
}

/** A decision of `kindred advise`. */
export function adviceOf({ what, outcome, reason, times, first }) {
  const since = times > 1 ? ` (${times} times since ${moment(first)})` : "";
  const said = {
    proposed: `${what}: to be done by hand`,
    waited: `${what}: not yet, ${reason}`,
    applied: `${what}: done`,
    failed: `${what}: failed, ${reason}`,
  };
  return (said[outcome] ?? `${what}: ${outcome}`) + since;
}
