// Server-sent events, read from the chunks of a response: fetch() can send a token, which EventSource cannot.

/** The most characters of one event; a server that sends more is not this one. */
const EVENT_MAX = 64 << 20;

/** Cuts text into events, wherever its chunks end. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.event = "message";
    this.data = [];
    this.length = 0;
  }

  /** Takes a chunk; returns the events that it completes, as `{ event, data }`. */
  push(chunk) {
    const lines = (this.rest + chunk).split(/\r\n|\n/);
    this.rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0) events.push({ event: this.event, data: this.data.join("\n") });
        this.event = "message";
        this.data = [];
        this.length = 0;
      } else if (!line.startsWith(":")) {
        this.field(line);
      }
    }
    if (this.rest.length + this.length > EVENT_MAX) throw new Error("an event is too long");
    return events;
  }

  field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    if (name === "data") {
      this.data.push(value);
      this.length += value.length;
    }
  }
}
