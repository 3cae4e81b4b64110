// A move that the command begins, and those that the page's buttons begin and end.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";

import { accessible, isClean, looks, picture, row, settings, step, view, watchPage, withBrowser } from "./driver.mjs";

const run = promisify(execFile);
const { base, cli } = settings;

const api = async (path) => (await fetch(`${base}/api/v1/${path}`)).json();
const kindred = (...words) => run(cli, ["--admin", base, ...words]);

await withBrowser(async (browser, context) => {
  const page = await context.newPage();
  watchPage(page);
  await page.goto(base);
  await looks(page);
  await view(page, "moves");

  await step("a move begun by the command appears and ends", async () => {
    await kindred("move", "pods", "--to", "pods2");
    const moved = await row(page, "moves-table", "the move of pods", (one) => one.Phase.startsWith("Switched"));
    assert.equal(moved.Kind, "pods");
    assert.equal(moved["From and to"], "pods → pods2");
    assert.match(moved.Progress, /50 keys/);
    await kindred("move", "complete");
    await row(page, "moves-table", "its end", (one) => one.Move === moved.Move && one.Phase === "Done");
  });

  /** Fills the form, and returns the plan's text. */
  async function plan(verb, fields) {
    await page.selectOption("#move-verb", verb);
    for (const [name, value] of Object.entries(fields)) {
      const field = page.locator(`#move-${name}`);
      if (name === "to") await field.selectOption(value);
      else if (name === "hold") await field.setChecked(value);
      else await field.fill(value);
    }
    await page.getByRole("button", { name: "Plan" }).click();
    await page.waitForSelector("#dialog[open]");
    return page.textContent("#dialog");
  }

  async function confirm() {
    await page.click("#confirm");
    await page.waitForSelector("#dialog", { state: "hidden" });
  }

  async function request(id, what) {
    await page.getByRole("button", { name: `${what} move ${id}` }).click();
    await confirm();
  }

  const phase = (id, wanted) => row(page, "moves-table", `move ${id} ${wanted}`, (one) => one.Move === id && one.Phase.startsWith(wanted));

  await step("a plan shows the cost and changes nothing until it is confirmed", async () => {
    const said = await plan("move", { kind: "pods", to: "pods" });
    assert.match(said, /Plan: move pods to pods/);
    assert.match(said, /pods2 → pods/);
    assert.match(said, /Keys50/);
    assert.equal(await page.evaluate(() => document.activeElement.id), "cancel", "the dialog has the focus");
    await accessible(page, "the plan");
    await picture(page, "plan");
    await page.keyboard.press("Escape");
    await page.waitForSelector("#dialog", { state: "hidden" });
    assert.equal((await api("moves")).items.filter((move) => !move.over).length, 0);
  });

  await step("buttons move a Kind, and complete the move", async () => {
    await plan("move", { kind: "pods", to: "pods" });
    await confirm();
    assert.match(await page.textContent("#said"), /Move 2 has begun/);
    await phase("2", "Switched");
    await request("2", "complete");
    await phase("2", "Done");
    const { partitions } = await api("partitions");
    assert.deepEqual(partitions.find((one) => one.start === "/registry/pods/").stores, ["pods"]);
  });

  await step("buttons split a Kind, and take it back", async () => {
    const said = await plan("split", { kind: "pods", at: "ns/3", to: "pods2" });
    assert.match(said, /datapartitionconfigs/);
    await confirm();
    await phase("3", "Switched");
    assert.equal((await api("partitions")).partitions.filter((one) => one.start.startsWith("/registry/pods/")).length, 2);
    await request("3", "reverse");
    await phase("3", "Switched back");
    await request("3", "complete");
    await phase("3", "Done");
    assert.equal((await api("partitions")).partitions.filter((one) => one.start.startsWith("/registry/pods/")).length, 1);
  });

  await step("a move that waits is aborted", async () => {
    await plan("move", { kind: "pods", to: "pods2", hold: true });
    await confirm();
    await phase("4", "Ready");
    await picture(page, "moves");
    await request("4", "abort");
    await phase("4", "Aborted");
    await plan("move", { kind: "pods", to: "pods", hold: false });
    assert.match(await page.textContent("#dialog"), /so already/);
    await page.keyboard.press("Escape");
  });

  await step("a refusal is shown as the router words it", async () => {
    await page.fill("#move-kind", "pdos");
    await page.selectOption("#move-to", "pods2");
    await page.getByRole("button", { name: "Plan" }).click();
    await page.waitForFunction(() => document.getElementById("move-problem").textContent.includes("did you mean"));
    // The browser tells the console of any answer above 400.
    const said = page.problems.splice(0);
    assert.ok(said.length === 1 && /status of 4\d\d/.test(said[0]), said.join());
  });

  isClean(page);
});
