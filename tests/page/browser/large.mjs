// A thousand ranges of five hundred Kinds: all are there, and only those in sight are drawn.

import assert from "node:assert/strict";

import { accessible, fits, isClean, looks, row, settings, step, table, view, watchPage, withBrowser } from "./driver.mjs";

const { base, kinds, ranges } = settings;

await withBrowser(async (browser, context) => {
  const page = await context.newPage();
  watchPage(page);

  await step("all Kinds are in the table", async () => {
    await page.goto(base);
    await looks(page);
    await view(page, "kinds");
    const shown = await table(page, "kinds-table");
    assert.equal(shown.length, kinds);
    assert.ok(shown.every((kind) => kind.Keys === "2" && kind.Ranges === "2" && kind.Stores === "pods, pods2"), JSON.stringify(shown[0]));
    const { partitions } = await (await fetch(`${base}/api/v1/partitions`)).json();
    assert.ok(partitions.length >= ranges);
  });

  await step("the map by store scrolls to its last row, which can be read", async () => {
    await view(page, "keyspace");
    await page.getByRole("radio", { name: "by store" }).check();
    await page.getByRole("radio", { name: "by name" }).check();
    assert.match(await page.textContent("#keyspace-summary"), /^500 Kinds, 3 stores, \d.\d{3} partitions$/u);
    const grid = page.locator(".grid");
    await grid.focus();
    await page.keyboard.press("Control+End");
    await page.keyboard.press("Home");
    const last = `kind${kinds - 1}s.example.com`;
    const reading = () => page.textContent(".reading");
    assert.match(await reading(), new RegExp(`^${last} at default: nothing`));
    await page.keyboard.press("ArrowRight");
    assert.match(await reading(), new RegExp(`^${last} at pods: 1 keys`));
    const [top, canvas] = await page.evaluate(() => [document.querySelector(".grid").scrollTop, document.querySelector(".grid canvas").height]);
    assert.ok(top > 9000 && canvas < 2000, `scrolled to ${top}, a canvas of ${canvas}`);
    await page.keyboard.press("Enter");
    assert.equal(await page.textContent("#kind-title"), last);
    await row(page, "ranges", "its second range", (one) => one.Stores === "pods2");
    assert.equal((await table(page, "ranges")).length, 2);
  });

  await step("it goes on with the pointer, with new looks, and on a phone", async () => {
    const box = await page.locator(".grid").boundingBox();
    await page.mouse.move(box.x + 300, box.y + 80);
    const first = await page.textContent(".reading");
    await page.mouse.wheel(0, -4000);
    await looks(page, 2);
    await page.mouse.move(box.x + 300, box.y + 120);
    assert.notEqual(await page.textContent(".reading"), first);
    await page.setViewportSize({ width: 360, height: 740 });
    await looks(page);
    await fits(page, "the map on a phone");
    await accessible(page, "the map on a phone");
  });

  isClean(page);
});
