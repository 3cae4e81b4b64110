// What all scripts use: a Chromium of their own, pages that fail on any error, and steps that are printed.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const modules = createRequire(`${process.env.KINDRED_PAGE_MODULES}/`);
const { chromium } = modules("playwright-core");
const axeSource = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");

export const settings = JSON.parse(process.env.KINDRED_PAGE);
/** A wait on a busy machine. */
export const PATIENCE = 90_000;
export const VIEWS = ["overview", "keyspace", "kinds", "stores", "moves", "clients", "slow"];

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let passed = 0;

/** One step, with its name in the output. */
export async function step(name, body) {
  const began = Date.now();
  try {
    await body();
  } catch (error) {
    console.log(`failed: ${name}`);
    throw error;
  }
  passed += 1;
  console.log(`ok: ${name} (${Date.now() - began} ms)`);
}

/** Runs a script with a browser whose profile is its own. */
export async function withBrowser(body) {
  const profile = mkdtempSync(join(tmpdir(), "kindred-chromium-"));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.KINDRED_CHROMIUM,
    args: FLAGS,
    viewport: { width: 1200, height: 760 },
    ignoreHTTPSErrors: true,
  });
  try {
    await body(browser.browser() ?? browser, browser);
    console.log(`${passed} steps passed`);
  } finally {
    await browser.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Fails the script on whatever goes wrong in a page, and on whatever it asks of others than this router. */
export function watchPage(page, { refusals = false } = {}) {
  page.setDefaultTimeout(PATIENCE);
  page.problems = [];
  page.urls = [];
  page.on("pageerror", (error) => page.problems.push(`error: ${error.stack}`));
  page.on("console", (message) => {
    const refused = refusals && /status of (401|403)/.test(message.text());
    if (["error", "warning"].includes(message.type()) && !refused) page.problems.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => page.urls.push(request.url()));
  page.on("dialog", (dialog) => {
    page.problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
}

/** Checks that nothing went wrong in a page. */
export function isClean(page) {
  assert.deepEqual(page.problems, []);
  for (const url of page.urls) assert.ok(url.startsWith(`${settings.base}/`), `the page asked for ${url}`);
}

/** Waits for more looks at the cluster. */
export async function looks(page, more = 1) {
  const before = await page.evaluate(() => Number(document.body.dataset.looks ?? 0));
  await page.waitForFunction((wanted) => Number(document.body.dataset.looks ?? 0) >= wanted, before + more);
}

export async function view(page, id) {
  await page.click(`#tab-${id}`);
  await page.waitForSelector(`#${id}`, { state: "visible" });
}

/** The text of the cells of a table: a list of rows, each an object by the headings. */
export function table(page, id) {
  return page.evaluate((id) => {
    const found = document.getElementById(id);
    const heads = [...found.tHead.rows[0].cells].map((cell) => cell.textContent);
    const rows = [...found.tBodies[0].rows];
    return rows.map((row) => Object.fromEntries([...row.cells].map((cell, at) => [heads[at], cell.textContent])));
  }, id);
}

/** Waits until a table has a row for which `wanted` is true; returns it. */
export async function row(page, id, what, wanted) {
  const until = Date.now() + PATIENCE;
  let rows = [];
  while (Date.now() < until) {
    rows = await table(page, id);
    const found = rows.find(wanted);
    if (found) return found;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`${what} did not come about: ${JSON.stringify(rows)}`);
}

/** Checks the view that is shown by axe, for WCAG 2.2 A and AA. */
export async function accessible(page, what) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await page.evaluate(async (values) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: "tag", values } });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html.slice(0, 160)} ${node.failureSummary}`).join(" | ")}`);
  }, tags);
  assert.deepEqual(found, [], what);
}

/** The page itself must not be wider than the screen. */
export async function fits(page, what) {
  const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(wide <= screen, `${what} is ${wide} px wide on a screen of ${screen}`);
}

/** A picture for the documentation. It is taken, and written only where the documentation is. */
export async function picture(page, name) {
  const taken = await page.screenshot({ animations: "disabled" });
  assert.ok(taken.length < 150 << 10, `${name} has ${taken.length} bytes`);
  if (process.env.KINDRED_DOCS === "write") {
    writeFileSync(new URL(`../../../docs/images/page-${name}.png`, import.meta.url), taken);
  }
}
