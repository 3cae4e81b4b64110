// The parts of the page that need no browser.

import assert from "node:assert/strict";
import test from "node:test";

import { contrast, css, fromOklch, heat, luminance, part } from "../../../router/src/admin/page/colors.mjs";
import { bytes, clock, count, duration, percent, plural, rate, UNKNOWN } from "../../../router/src/admin/page/format.mjs";
import { Heat, KEPT, METRICS } from "../../../router/src/admin/page/heat.mjs";
import { growth, Rates } from "../../../router/src/admin/page/rates.mjs";
import { sorted } from "../../../router/src/admin/page/sort.mjs";
import { EventParser } from "../../../router/src/admin/page/sse.mjs";
import * as words from "../../../router/src/admin/page/words.mjs";

const STEPS = Array.from({ length: 101 }, (_, at) => at / 100);
const ungamma = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);

/** What those see who lack one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1), in linear light. */
const DEFICIENCIES = {
  none: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
  grey: Array(3).fill([0.2126, 0.7152, 0.0722]),
};

function seenLuminance(rgb, matrix) {
  const linear = rgb.map(ungamma);
  const seen = matrix.map((row) => row.reduce((sum, factor, at) => sum + factor * linear[at], 0));
  return 0.2126 * seen[0] + 0.7152 * seen[1] + 0.0722 * seen[2];
}

test("more is always lighter on a dark page and darker on a light one, for every eye", () => {
  for (const [name, matrix] of Object.entries(DEFICIENCIES)) {
    for (const dark of [true, false]) {
      const seen = STEPS.map((at) => seenLuminance(heat(at, dark), matrix));
      for (let at = 1; at < seen.length; at += 1) {
        const grows = dark ? seen[at] > seen[at - 1] : seen[at] < seen[at - 1];
        assert.ok(grows, `${name}, dark ${dark}: step ${at}: ${seen[at - 1]} then ${seen[at]}`);
      }
    }
  }
});

test("the ends of the scale stand apart, and the hottest from the background", () => {
  assert.ok(contrast(heat(0, true), heat(1, true)) > 7);
  assert.ok(contrast(heat(1, true), [0.09, 0.11, 0.14]) > 7);
  assert.ok(contrast(heat(1, false), [1, 1, 1]) > 7);
  assert.equal(heat(2, true), heat(1, true));
  assert.match(css(heat(0.5, true)), /^rgb\(\d+ \d+ \d+\)$/);
  assert.equal(fromOklch(0.5, 0.4, 150), null, "no screen shows this");
  assert.ok(Math.abs(luminance(fromOklch(1, 0, 0)) - 1) < 1e-3);
});

test("parts are between 0 and 1, and grow with the value", () => {
  assert.deepEqual([part(0, 100, 1), part(-1, 100, 1), part(5, 0, 1), part(100, 100, 1), part(200, 100, 1)], [0, 0, 0, 1, 1]);
  const parts = [1, 3, 10, 30, 100].map((value) => part(value, 100, 1));
  assert.deepEqual([...parts].sort((a, b) => a - b), parts);
});

test("numbers are written as people read them", () => {
  assert.deepEqual([0, 1023, 1024, 1536, 10 * 1024, 5e9].map(bytes), ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 KiB", "4.66 GiB"]);
  assert.deepEqual([0, 999, 1000, 1234567].map(count), ["0", "999", "1\u202f000", "1\u202f234\u202f567"]);
  assert.deepEqual([0, 0.01, 0.26, 9.9, 42, 1234, 2.5e6].map(rate), ["0", "<0.1", "0.3", "9.9", "42", "1.23 k", "2.50 M"]);
  assert.deepEqual([0, 3.5e-4, 0.0012, 0.25, 4, 90, 600, 7200, 200000, -4].map(duration), ["0 s", "350 µs", "1.2 ms", "250 ms", "4.0 s", "90 s", "10 min", "2 h", "2 d", "-4.0 s"]);
  for (const format of [bytes, count, rate, duration, clock]) assert.equal(format(null), UNKNOWN);
  assert.deepEqual([percent(1, 4), percent(1, 0), plural(1, "store"), plural(2, "store")], ["25 %", UNKNOWN, "1 store", "2 stores"]);
  assert.match(clock(0), /^\d\d:\d\d:\d\d$/);
});

test("rows sort by number and by text with numbers, and what is not known comes last", () => {
  const by = (values, descending) => sorted(values.map((value) => ({ value })), (row) => row.value, descending).map((row) => row.value);
  assert.deepEqual(by(["pods-10", "pods-9", "Leases"], false), ["Leases", "pods-9", "pods-10"]);
  assert.deepEqual(by([3, null, 10, undefined, 1], true), [10, 3, 1, null, undefined]);
  assert.deepEqual(by([3, null, 10], false), [3, 10, null]);
  const equal = sorted([{ a: 1, b: 1 }, { a: 1, b: 2 }], (row) => row.a, true);
  assert.deepEqual(equal.map((row) => row.b), [1, 2], "rows with the same value keep their order");
});

test("rates are those of the window, and survive a restart of the router", () => {
  const rates = new Rates(10);
  const look = (at, calls, micros) => rates.add(at, new Map([["pods", { calls, micros }]]));
  assert.equal(rates.perSecond("pods", "calls"), null);
  look(100, 50, 1000);
  assert.equal(rates.perSecond("pods", "calls"), null);
  look(102, 70, 3000);
  assert.equal(rates.perSecond("pods", "calls"), 10);
  assert.equal(rates.mean("pods", "micros", "calls"), 100);
  for (let at = 104; at <= 200; at += 2) look(at, 70 + (at - 102), 3000);
  assert.ok(rates.looks.length <= 7 && rates.seconds >= 10, `${rates.looks.length} looks over ${rates.seconds} s`);
  assert.equal(rates.perSecond("pods", "calls"), 1);
  assert.equal(growth(100, 7), 7);
  look(202, 4, 10);
  assert.ok(rates.perSecond("pods", "calls") >= 0);
  assert.equal(rates.perSecond("nodes", "calls"), null);
  look(202, 900, 10);
  assert.ok(rates.perSecond("pods", "calls") < 10, "the same look twice is one");
});

test("events are found wherever the chunks end", () => {
  const text = 'event: hello\ndata: {"a":1}\n\n: a comment\ndata: one\r\ndata: two\r\n\r\ndata:x\n\n';
  const wanted = [
    { event: "hello", data: '{"a":1}' },
    { event: "message", data: "one\ntwo" },
    { event: "message", data: "x" },
  ];
  for (let size = 1; size < 20; size += 1) {
    // A \r\n that is cut in two would be two ends of lines; servers of ours send \n.
    const parser = new EventParser();
    const plain = text.replaceAll("\r", "");
    const events = [];
    for (let at = 0; at < plain.length; at += size) events.push(...parser.push(plain.slice(at, at + size)));
    assert.deepEqual(events, wanted, `chunks of ${size}`);
  }
  assert.deepEqual(new EventParser().push(text), wanted);
});

test("the heat of an hour is kept, and steps that come twice are one", () => {
  const heatOf = new Heat();
  const answer = (at, more = false) => ({ stepSeconds: 10, kinds: ["pods", "events"], steps: [{ at, cells: [[0, 20, 1, 500, 40000, 10], [1, 5, 0, 0, 0, 0]] }], more });
  assert.equal(heatOf.add(answer(100, true)), true);
  assert.equal(heatOf.add(answer(100.0000001)), false);
  assert.equal(heatOf.steps.length, 1);
  assert.deepEqual([heatOf.value("pods", 0, "ops"), heatOf.value("pods", 0, "bytes"), heatOf.value("pods", 0, "latency")], [3, 50, 0.002]);
  assert.deepEqual([heatOf.value("pods", 9, "ops"), heatOf.value("secrets", 0, "ops")], [0, 0]);
  assert.equal(heatOf.most(["events"], "ops"), 0.5);
  assert.deepEqual([...heatOf.totals()], [["pods", 30], ["events", 5]]);
  assert.deepEqual(heatOf.lines().ops, [2.5]);
  assert.deepEqual(heatOf.lines("events").latency, [0]);
  for (let at = 0; at < 2 * KEPT; at += 1) heatOf.add(answer(200 + 10 * at));
  assert.equal(heatOf.steps.length, KEPT);
  assert.equal(Object.keys(METRICS).length, 3);
});

test("what may be asked of a move follows its phase", () => {
  const asked = (phase, goal = "there", over = false) => words.requestsOf({ phase, goal, over });
  assert.deepEqual(asked("Copying"), ["abort"]);
  assert.deepEqual(asked("Ready"), ["switch", "abort"]);
  assert.deepEqual(asked("Switched"), ["reverse", "complete"]);
  assert.deepEqual(asked("Copying", "abort"), ["reverse"]);
  assert.deepEqual([asked("Completing"), asked("Aborting", "abort"), asked("Done", "there", true)], [[], [], []]);
  for (const request of ["switch", "reverse", "complete", "abort"]) assert.ok(words.REQUESTS[request]);
});

test("stores, members and moves are put in words", () => {
  const member = (fields) => words.ofMember({ role: "standby", whole: true, connected: true, ...fields });
  assert.equal(member({ counts: true, silentMillis: 3 }), "in sync");
  assert.equal(member({ counts: true, silentMillis: 1500 }), "silent for 1500 ms");
  assert.equal(member({ whole: false }), "copies");
  assert.equal(member({ connected: false }), "not connected to the primary");
  assert.equal(member({ batchesBehind: 3 }), "follows, 3 batches behind");
  assert.equal(member({ role: "primary", term: 4 }), "serves, term 4");
  assert.equal(words.standbysOf({}), "none");
  assert.equal(words.lagOf({ lagSeconds: 4, load: { notDurableMillis: 250 }, clockOffsetSeconds: 0.01 }), "events 4.0 s, disk 250 ms");
  assert.equal(words.lagOf({ lagSeconds: null, load: null, clockOffsetSeconds: null }), "none");
  assert.equal(words.diskOf({ load: { failing: "no space" } }), "its log fails: no space");
  assert.equal(words.progressOf({ over: false, progress: { keysCopied: 0, failing: [{ step: "Copy", times: 2, reason: "no" }] } }), "Copy failed 2 times: no");
  const phase = (phase, goal) => words.phaseOf({ phase, goal, over: phase === "Done" });
  assert.deepEqual([phase("Switched", "there"), phase("Switched", "back"), phase("Done", "back")], ["Switched", "Switched back", "Done"]);
  assert.equal(words.stepsOf({ legs: [{ from: "a", to: "b" }, { from: "a", to: "b" }, { from: "b", to: "c" }] }), "a → b, b → c");
});

test("a Kind's ranges are its own, or the one that it shares", () => {
  const ranges = [
    { start: "", end: "/registry/pods/", kind: null },
    { start: "/registry/pods/", end: "/registry/pods0", kind: "/registry/pods/" },
    { start: "/registry/pods0", end: null, kind: null },
    { start: "/registry/pods", end: "/registry/pods\\x00", kind: "/registry/pods/" },
  ];
  assert.deepEqual(words.rangesOf(ranges, "/registry/pods/"), [ranges[1]]);
  assert.deepEqual(words.rangesOf(ranges, "/registry/secrets/"), [ranges[2]]);
  assert.deepEqual(words.rangesOf(ranges, "/registry/configmaps/"), [ranges[0]]);
  assert.deepEqual(words.rangesOf(ranges, null), []);
});

test("a decision of kindred advise is said in words", () => {
  const said = (outcome, reason = null, times = 1) => words.adviceOf({ what: "move pods to b", outcome, reason, times, first: 1e9 });
  assert.equal(said("applied"), "move pods to b: done");
  assert.equal(said("proposed"), "move pods to b: to be done by hand");
  assert.equal(said("waited", "these are quiet hours"), "move pods to b: not yet, these are quiet hours");
  assert.equal(said("failed", "no store"), "move pods to b: failed, no store");
  assert.match(said("waited", "it is night", 12), /not yet, it is night \(12 times since 2001-09-\d\d \d\d:\d\d:\d\d\)$/);
  assert.equal(said("of a later version"), "move pods to b: of a later version");
});
