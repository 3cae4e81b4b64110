// A page that looks on while its router stops.

import assert from "node:assert/strict";

import { looks, settings, step, watchPage, withBrowser } from "./driver.mjs";

await withBrowser(async (browser, context) => {
  const page = await context.newPage();
  watchPage(page);
  await page.goto(settings.base);
  await looks(page);
  console.log("the page is live");
  await step("the page says that the router is away", async () => {
    await page.waitForFunction(() => document.getElementById("link").textContent.startsWith("away: "));
    assert.ok(await page.isVisible("#data"), "what was seen last stays in sight");
    assert.ok(await page.evaluate(() => document.body.classList.contains("stale")));
  });
});
