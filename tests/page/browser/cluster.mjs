// A cluster under load that asks nobody who they are: what the page shows is what the API says.

import assert from "node:assert/strict";

import { accessible, fits, isClean, looks, picture, row, settings, step, table, view, VIEWS, watchPage, withBrowser } from "./driver.mjs";

const { base, gateway, markup, pids } = settings;
const writesDocs = process.env.KINDRED_DOCS === "write";

const api = async (path) => (await fetch(`${base}/api/v1/${path}`)).json();
const plain = (text) => Number(text.replace(/\D/g, ""));
const pause = (millis) => new Promise((done) => setTimeout(done, millis));

await withBrowser(async (browser, context) => {
  const page = await context.newPage();
  watchPage(page);

  await step("the page has its headers and shows that nothing is wrong", async () => {
    const answer = await page.goto(base);
    const headers = answer.headers();
    assert.match(headers["content-security-policy"], /default-src 'none'; script-src 'self'/);
    assert.equal(headers["x-frame-options"], "DENY");
    await looks(page, 2);
    assert.equal(await page.textContent("#link"), "live");
    assert.ok(await page.isVisible("#well"));
    assert.equal(await page.isVisible("#signin"), false);
  });

  await step("stores and Kinds are those of the API", async () => {
    await view(page, "stores");
    const { stores } = await api("stores");
    const shown = await table(page, "stores-table");
    assert.deepEqual(shown.map((store) => store.Store.split(" ")[0]), stores.map((store) => store.name).sort());
    for (const store of shown) assert.equal(store.State, "● up");
    await view(page, "kinds");
    const { kinds } = await api("kinds");
    // The clients write the same keys again and again, so the numbers stay.
    for (const kind of kinds) {
      const found = await row(page, "kinds-table", `${kind.kind} with ${kind.keys} keys`, (one) => one.Kind === kind.kind && plain(one.Keys) === kind.keys);
      assert.equal(found.Stores, kind.stores.join(", "));
    }
    assert.equal((await table(page, "kinds-table")).length, kinds.length);
    assert.ok(kinds.some((kind) => kind.kind === "pods" && kind.keys === 50 && kind.stores[0] === "pods"));
    await row(page, "kinds-table", "calls of pods in a second", (one) => one.Kind === "pods" && Number.parseFloat(one["Calls/s"]) > 1);
  });

  await step("columns sort both ways", async () => {
    const keys = async () => (await table(page, "kinds-table")).map((one) => plain(one.Keys));
    await page.getByRole("button", { name: "Keys" }).click();
    const descending = await keys();
    assert.deepEqual(descending, [...descending].sort((a, b) => b - a));
    await page.getByRole("button", { name: "Keys" }).click();
    const ascending = await keys();
    assert.deepEqual(ascending, [...ascending].sort((a, b) => a - b));
    assert.equal(await page.getAttribute("#kinds-table th:nth-child(3)", "aria-sort"), "ascending");
  });

  await step("what clients write is text, never markup", async () => {
    const kinds = await table(page, "kinds-table");
    assert.ok(kinds.some((kind) => kind.Kind.includes(markup)), JSON.stringify(kinds));
    // A put waits at a store that stands still, and is slow.
    const encoded = Buffer.from(`/registry/configmaps/ns/${markup}`).toString("base64");
    process.kill(pids.default, "SIGSTOP");
    const put = fetch(`${gateway}/v3/kv/put`, { method: "POST", body: JSON.stringify({ key: encoded, value: encoded }) });
    await pause(500);
    process.kill(pids.default, "SIGCONT");
    assert.ok((await put).ok);
    await view(page, "slow");
    const slow = await row(page, "slow-table", "the slow put", (one) => one.Key.includes(markup));
    assert.equal(slow.Verb, "put");
    await view(page, "keyspace");
    await view(page, "moves");
    assert.equal(await page.evaluate(() => document.querySelectorAll("img, [onerror]").length), 0);
    assert.equal(await page.evaluate(() => "hacked" in window), false);
  });

  await step("decisions of kindred advise are shown in words, the newest first", async () => {
    await view(page, "overview");
    assert.equal(await page.isVisible("#advice"), false, "there is none yet");
    const tell = async (what, outcome, reason) => {
      const told = JSON.stringify({ what, why: "store a is full", outcome, reason });
      const headers = { "content-type": "application/json" };
      assert.equal((await fetch(`${base}/api/v1/advice`, { method: "POST", headers, body: told })).status, 201);
    };
    for (let times = 0; times < 3; times += 1) await tell("move pods to b", "waited", "these are quiet hours");
    await tell(`move ${markup} to b`, "failed", "no such store");
    await page.waitForFunction(() => document.querySelectorAll("#advice li").length === 2);
    const [newest, older] = await page.locator("#advice li").allTextContents();
    assert.ok(newest.includes(`move ${markup} to b: failed, no such store`), newest);
    assert.match(older, /move pods to b: not yet, these are quiet hours \(3 times since .*because store a is full/);
    assert.equal(await page.isVisible("#well"), true, "a decision is no alert");
    assert.equal(await page.evaluate(() => document.querySelectorAll("img, [onerror]").length), 0);
    await accessible(page, "decisions");
  });

  await step("a store that stops is an alert, until it is back", async () => {
    await view(page, "overview");
    process.kill(pids.pods2, "SIGSTOP");
    try {
      await page.waitForFunction(() => /Store pods2 is down/.test(document.getElementById("alerts").textContent));
      assert.match(await page.textContent("#alerts li"), /^Error/);
      assert.equal(await page.isVisible("#well"), false);
      await page.waitForFunction(() => /Store pods2 is down/.test(document.getElementById("said").textContent));
      await row(page, "overview-stores", "a store that is down", (one) => one.Store === "pods2" && one.State === "▲ down");
      await accessible(page, "an alert");
    } finally {
      process.kill(pids.pods2, "SIGCONT");
    }
    await page.waitForSelector("#well", { state: "visible" });
  });

  await step("the map of the last hour is drawn, and read by keyboard", async () => {
    // A step of the traffic ends every ten seconds.
    await page.waitForFunction(async () => (await (await fetch("/api/v1/heat")).json()).steps.length > 1);
    if (writesDocs) await pause(240_000);
    await view(page, "keyspace");
    await looks(page, 2);
    const colors = () =>
      page.evaluate(() => {
        const canvas = document.querySelector(".grid canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = new Set();
        for (let at = 0; at < data.length; at += 4) found.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
        return found.size;
      });
    assert.ok((await colors()) > 20, "cells, names and headings have colours");
    const grid = page.locator(".grid");
    await grid.focus();
    const reading = () => page.textContent(".reading");
    const first = await reading();
    assert.match(first, /^\S.*, \d\d:\d\d:\d\d to \d\d:\d\d:\d\d: .*\/s, .*\/s, mean /);
    await page.keyboard.press("Control+Home");
    await page.keyboard.press("ArrowDown");
    assert.notEqual((await reading()).split(",")[0], first.split(",")[0]);
    await page.keyboard.press("Home");
    await page.keyboard.press("Control+Home");
    const most = await page.textContent(".legend span:last-child");
    await page.getByRole("radio", { name: "Bytes" }).check();
    assert.notEqual(await page.textContent(".legend span:last-child"), most);
    await page.getByRole("radio", { name: "Latency" }).check();
    assert.match(await page.textContent(".legend span:last-child"), /s$/);
    await page.getByRole("radio", { name: "Calls" }).check();
    await page.fill("#kind-filter", "pods");
    assert.match(await page.textContent("#keyspace-summary"), /^1 Kind, 3 stores/);
    await grid.focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.textContent("#kind-title"), "pods");
    const ranges = await row(page, "ranges", "the range of pods", (one) => one.From === "/registry/pods/");
    assert.equal(ranges.Stores, "pods");
    await page.fill("#kind-filter", "");
    await page.getByRole("radio", { name: "by store" }).check();
    await page.getByRole("radio", { name: "Keys" }).check();
    await page.fill("#kind-filter", "pods");
    await grid.focus();
    await page.keyboard.press("ArrowRight");
    assert.match(await reading(), /^pods at (default|pods|pods2): (50 keys|nothing)/);
    await page.fill("#kind-filter", "");
    await page.getByRole("radio", { name: "over the last hour" }).check();
    await page.evaluate(() => scrollTo(0, 0));
    await picture(page, "keyspace");
  });

  await step("lookers-on are bounded, and those who leave make room", async () => {
    const leave = new AbortController();
    const look = () => fetch(`${base}/api/v1/live`, { signal: leave.signal });
    const answers = await Promise.all(Array.from({ length: 40 }, look));
    const refused = answers.filter((answer) => answer.status !== 200);
    assert.ok(refused.length >= 8 && refused.length < 40, `${refused.length} of 40 are refused`);
    assert.match((await refused[0].json()).message, /32 pages show this router already/);
    leave.abort();
    await page.waitForFunction(async () => {
      const one = new AbortController();
      const { status } = await fetch("/api/v1/live", { signal: one.signal });
      one.abort();
      return status === 200;
    });
    await looks(page);
    // The browser tells the console of the refusals before there was room.
    page.problems = page.problems.filter((problem) => !problem.includes("status of 503"));
    const foreign = await fetch(`${base}/api/v1/live`, { headers: { "sec-fetch-site": "cross-site" } });
    assert.equal(foreign.status, 403);
  });

  await step("all is reached by keyboard, and one sees where one is", async () => {
    await page.reload();
    await looks(page);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
    await page.focus("#tab-keyspace");
    await page.keyboard.press("Home");
    for (const id of VIEWS) {
      assert.equal(await page.evaluate(() => document.activeElement.id), `tab-${id}`);
      assert.ok(await page.isVisible(`#${id}`));
      const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.equal(outline, "solid", `the tab ${id} has a visible focus`);
      await page.keyboard.press("ArrowRight");
    }
    assert.equal(await page.evaluate(() => document.activeElement.id), "tab-overview");
  });

  await step("every view is accessible, light and dark", async () => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      for (const id of VIEWS) {
        await view(page, id);
        await accessible(page, `${id}, ${colorScheme}`);
        await fits(page, id);
      }
      await view(page, "overview");
      await picture(page, `overview-${colorScheme}`);
    }
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await background();
    await page.selectOption("#theme", "light");
    assert.notEqual(await background(), dark, "the switch goes before the system");
    await page.selectOption("#theme", "auto");
    await page.emulateMedia({ colorScheme: "light" });
  });

  await step("a phone shows all of it", async () => {
    await page.setViewportSize({ width: 360, height: 740 });
    for (const id of VIEWS) {
      await view(page, id);
      await fits(page, `${id} on a phone`);
    }
    await accessible(page, "slow requests on a phone");
    await view(page, "keyspace");
    await page.evaluate(() => scrollTo(0, 0));
    await picture(page, "phone");
    await page.setViewportSize({ width: 1200, height: 760 });
  });

  isClean(page);
});
