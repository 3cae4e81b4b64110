// Requests to the admin API, with the token of this tab. The token is kept in sessionStorage, or in memory where that is
// not allowed, and is sent to this router only.

import { EventParser } from "./sse.mjs";

const KEY = "kindred-token";
const ANSWER_WITHIN_MS = 30_000;
/** Looks come every two seconds; after this time without one the connection is given up. */
const SILENT_MS = 15_000;

let kept = null;

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

export function setToken(value) {
  kept = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Without storage the token is gone when the page is loaded again.
  }
}

/** An answer that is not a success. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more) {
  const shown = token();
  return shown ? { ...more, authorization: `Bearer ${shown}` } : more;
}

async function refused(response) {
  let message = `the router answered ${response.status}`;
  try {
    message = (await response.json()).message ?? message;
  } catch {
    // It said nothing more.
  }
  return new Refused(response.status, message);
}

/** Asks for JSON. A `body` is sent as JSON, which no page of another site can do. */
export async function ask(path, { method = "GET", body } = {}) {
  const response = await fetch(path, {
    method,
    headers: headers(body === undefined && method === "GET" ? {} : { "content-type": "application/json" }),
    body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
    cache: "no-store",
    redirect: "error",
    signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
  });
  if (!response.ok) throw await refused(response);
  return response.json();
}

/** Reads events until the stream ends, or falls silent, or `signal` is aborted. */
export async function listen(path, signal, onEvent) {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENT_MS);
  try {
    const response = await fetch(path, {
      headers: headers({ accept: "text/event-stream" }),
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.any([signal, silent.signal]),
    });
    if (!response.ok) throw await refused(response);
    const [reader, decoder, parser] = [response.body.getReader(), new TextDecoder(), new EventParser()];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENT_MS);
      for (const { event, data } of parser.push(decoder.decode(value, { stream: true }))) {
        onEvent(event, JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}
