// A port that asks for tokens, over TLS: strangers see a form and nothing else, viewers no buttons.

import assert from "node:assert/strict";

import { accessible, isClean, looks, row, settings, step, table, view, watchPage, withBrowser } from "./driver.mjs";

const { base, viewer, admin, markup } = settings;
const PATHS = ["live", "heat", "stores", "kinds", "moves", "clients", "slow", "traffic", "partitions", "status"];

await withBrowser(async (browser, context) => {
  const page = await context.newPage();
  watchPage(page, { refusals: true });
  const ask = (path, token, options = {}) =>
    page.request.fetch(`${base}${path}`, { ...options, headers: { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) } });

  async function signIn(token) {
    await page.fill("#token", token);
    await page.keyboard.press("Enter");
  }

  await step("a stranger gets the form, and no data", async () => {
    await page.goto(base);
    await page.waitForSelector("#signin", { state: "visible" });
    assert.equal(await page.isVisible("#data"), false);
    assert.equal(await page.evaluate(() => document.querySelectorAll("tbody tr, #alerts li").length), 0);
    assert.equal(await page.evaluate(() => document.querySelectorAll("[data-request]").length), 0);
    for (const path of PATHS) assert.equal((await ask(`/api/v1/${path}`)).status(), 401, path);
    for (const path of ["/metrics", "/readyz", "/page/", "/page/none.mjs", "//"]) assert.equal((await ask(path)).status(), 401, path);
    assert.equal((await ask("/")).status(), 200);
    const move = { method: "POST", data: { kind: "pods", to: "pods2" } };
    assert.equal((await ask("/api/v1/move", null, move)).status(), 401);
    await accessible(page, "the form");
  });

  await step("a token that nobody has is refused in words, and not kept", async () => {
    await signIn("page-nobody-0123456789");
    await page.waitForFunction(() => document.getElementById("signin-problem").textContent.includes("does not know"));
    assert.equal(await page.isVisible("#data"), false);
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  });

  await step("a viewer sees the data and has nothing to press", async () => {
    await signIn(viewer);
    await looks(page, 2);
    assert.equal(await page.evaluate(() => document.body.dataset.role), "view");
    await view(page, "kinds");
    await row(page, "kinds-table", "pods", (one) => one.Kind === "pods" && one.Keys === "20");
    await view(page, "moves");
    assert.equal(await page.isVisible("#begin"), false);
    assert.match(await page.textContent("#may-not"), /You may look/);
    assert.equal(await page.evaluate(() => document.querySelectorAll("[data-request]").length), 0);
    // Who asks without a button is refused by the router.
    for (const path of ["/api/v1/move", "/api/v1/plan", "/api/v1/moves/1/abort"]) {
      const asked = await page.evaluate(async ([path, token]) => {
        const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
        return (await fetch(path, { method: "POST", headers, body: '{"kind":"pods","to":"pods2"}' })).status;
      }, [path, viewer]);
      assert.equal(asked, 403, path);
    }
  });

  await step("the name of a client is text", async () => {
    await view(page, "clients");
    const client = await row(page, "clients-table", "the client", (one) => one.Client === markup);
    assert.equal(client.Calls, "20");
    assert.equal(await page.evaluate(() => document.querySelectorAll("img, [onerror]").length), 0);
    assert.equal(await page.evaluate(() => "hacked" in window), false);
  });

  await step("the token is this tab's alone, and in no address", async () => {
    await page.reload();
    await looks(page);
    assert.equal(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("token")).length), 0);
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.ok(page.urls.every((url) => !url.includes(viewer)));
    const other = await context.newPage();
    watchPage(other, { refusals: true });
    await other.goto(base);
    await other.waitForSelector("#signin", { state: "visible" });
    await other.close();
  });

  await step("who signs out leaves nothing behind", async () => {
    await page.click("#signout");
    await page.waitForSelector("#signin", { state: "visible" });
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.equal(await page.evaluate(() => document.querySelectorAll("tbody tr").length), 0);
  });

  await step("an admin has buttons, and moves a Kind by them", async () => {
    await signIn(admin);
    await looks(page);
    await view(page, "moves");
    await page.fill("#move-kind", "pods");
    await page.selectOption("#move-to", "pods2");
    await page.getByRole("button", { name: "Plan" }).click();
    await page.click("#confirm");
    const moved = await row(page, "moves-table", "the move", (one) => one.Phase === "Switched" || one.Phase.startsWith("Switched"));
    assert.equal(moved.Kind, "pods");
    await page.getByRole("button", { name: "complete move 1" }).click();
    await page.click("#confirm");
    await row(page, "moves-table", "its end", (one) => one.Phase === "Done");
  });

  await step("a page of another site gets nothing", async () => {
    const move = { method: "POST", data: '{"kind":"pods","to":"pods"}', headers: { "content-type": "application/json" } };
    const foreign = { ...move, headers: { ...move.headers, origin: "https://evil.example" } };
    assert.equal((await ask("/api/v1/move", admin, foreign)).status(), 403);
    const framed = await context.newPage();
    await framed.setContent(`<iframe id="frame" src="${base}/"></iframe>`);
    await framed.waitForTimeout(500);
    const shown = framed.frames().find((frame) => frame !== framed.mainFrame());
    assert.equal(await shown.locator("#signin").count(), 0, "the page is in nobody's frame");
    await framed.close();
  });

  isClean(page);
});
