// The page: who one is, the stream of looks, and the views.

import { ask, listen, setToken, token } from "./api.mjs";
import { announce, el, setText } from "./dom.mjs";
import { Heat } from "./heat.mjs";
import { keyspace } from "./keyspace.mjs";
import { moves } from "./moves.mjs";
import { overview, spoken } from "./overview.mjs";
import { Rates } from "./rates.mjs";
import { clients, kinds, slow, stores } from "./views.mjs";
import { counters } from "./words.mjs";

/** Rates are over this time, so that they do not jump. */
const WINDOW_SECONDS = 10;
const AGAIN_MS = [1000, 2000, 4000, 8000, 15_000];
/** A page that nobody sees gives its place at the router up. */
const UNSEEN_MS = 60_000;
const THEME = "kindred-theme";

const $ = (id) => document.getElementById(id);

const app = {
  role: "view",
  heat: new Heat(),
  rates: { kinds: new Rates(WINDOW_SECONDS), clients: new Rates(WINDOW_SECONDS) },
  look: null,
  openKind(kind) {
    show("keyspace");
    views.find((view) => view.id === "keyspace").open(kind);
    $("kind").scrollIntoView({ block: "start" });
  },
};
const views = [overview, keyspace, kinds, stores, moves, clients, slow].map((make) => make(app));
let current = views[0];

function buildTabs() {
  for (const view of views) {
    view.count = el("span", { className: "badge", hidden: true });
    view.tab = el(
      "button",
      {
        type: "button",
        id: `tab-${view.id}`,
        role: "tab",
        "aria-controls": view.id,
        on: { click: () => show(view.id), keydown: (event) => moveTab(event, view) },
      },
      view.title,
      view.count,
    );
    view.panel = el("section", { id: view.id, role: "tabpanel", "aria-labelledby": view.tab.id, hidden: true }, view.element);
    $("tabs").append(view.tab);
    $("views").append(view.panel);
  }
}

function moveTab(event, view) {
  const at = views.indexOf(view);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: views.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = views[(to + views.length) % views.length];
  show(next.id);
  next.tab.focus();
}

function show(id) {
  current = views.find((view) => view.id === id) ?? views[0];
  for (const view of views) {
    const chosen = view === current;
    view.panel.hidden = !chosen;
    view.tab.setAttribute("aria-selected", String(chosen));
    view.tab.tabIndex = chosen ? 0 : -1;
  }
  if (location.hash !== `#${current.id}`) history.replaceState(null, "", `#${current.id}`);
  document.title = `kindred: ${current.title}`;
  update();
  current.redraw?.();
}

function update() {
  if (!app.look) return;
  current.update(app);
  for (const view of views) {
    const number = view.badge?.(app) ?? 0;
    view.count.hidden = number === 0;
    setText(view.count, String(number));
  }
}

let spokenOf = null;

function seen(look) {
  app.look = look;
  app.rates.kinds.add(look.at, counters(look));
  app.rates.clients.add(look.at, new Map(look.clients.map((client) => [client.client, client])));
  const ids = look.alerts.map((alert) => alert.id).join();
  if (spokenOf !== null && ids !== spokenOf) announce(spoken(look.alerts));
  spokenOf = ids;
  state("live", "live");
  update();
  document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
  heated();
}

let heating = false;

/** Asks for the steps of the last hour that are not known yet. */
async function heated() {
  const heat = app.heat;
  if (heating || app.look.at < heat.last + heat.stepSeconds) return;
  heating = true;
  try {
    let [more, before] = [true, heat.last];
    while (more) more = heat.add(await ask(`/api/v1/heat?since=${heat.last}`));
    if (heat.last !== before) current.heated?.();
  } catch {
    // The next look tries again; the connection says what is wrong.
  } finally {
    heating = false;
  }
}

function state(name, text) {
  const link = $("link");
  if (link.dataset.state !== name) link.dataset.state = name;
  setText(link, text);
  document.body.classList.toggle("stale", name !== "live");
}

function hello({ role, router }) {
  app.role = role;
  document.body.dataset.role = role;
  setText($("router"), `router “${router}”`);
  $("signin").hidden = true;
  $("data").hidden = false;
  $("signout").hidden = token() === null;
}

function signIn(problem) {
  $("data").hidden = true;
  $("signin").hidden = false;
  setText($("signin-problem"), problem);
  state("stranger", "not signed in");
  $("token").focus();
}

let stop = new AbortController();

/** Listens until it is stopped, or the router does not know this tab. */
async function follow() {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  for (let failed = 0; !signal.aborted; ) {
    try {
      await listen("/api/v1/live", signal, (event, data) => {
        failed = 0;
        if (event === "hello") hello(data);
        else seen(data);
      });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) {
        const had = token() !== null;
        setToken(null);
        signIn(had ? "The router does not know this token." : "");
        return;
      }
      failed += 1;
      const refused = error.status ? error.message : "the router does not answer";
      state("away", `away: ${refused}`);
      await pause(AGAIN_MS[Math.min(failed, AGAIN_MS.length) - 1], signal);
      continue;
    }
    // A stream ends by itself after a while, or because the router stops.
    await pause(AGAIN_MS[0], signal);
  }
}

function pause(millis, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, millis);
    const early = () => {
      clearTimeout(timer);
      done();
    };
    signal.addEventListener("abort", early, { once: true });
  });
}

function themes() {
  const select = $("theme");
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    current.redraw?.();
  };
  try {
    select.value = localStorage.getItem(THEME) ?? "auto";
  } catch {
    // Without storage each tab begins as the system is.
  }
  set(select.value);
  select.addEventListener("change", () => {
    set(select.value);
    try {
      localStorage.setItem(THEME, select.value);
    } catch {
      // It holds for this tab.
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => set(select.value));
}

function pauseWhileUnseen() {
  let timer = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => {
        stop.abort();
        state("paused", "paused");
      }, UNSEEN_MS);
    } else if (stop.signal.aborted) {
      follow();
    }
  });
}

buildTabs();
themes();
show(location.hash.slice(1));
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (views.some((view) => view.id === id)) show(id);
});
pauseWhileUnseen();
$("signin").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  setText($("signin-problem"), "");
  follow();
});
$("signout").addEventListener("click", () => {
  setToken(null);
  // Nothing of what was shown stays.
  location.reload();
});
follow();
