// A large table of coloured cells on a canvas, with names at its left. Only what is in sight is drawn, so that thousands of
// rows cost what a screenful costs. Arrow keys move a cursor, and what is below it is said in words.

import { css, heat, part } from "./colors.mjs";
import { color, el, isDark, setText } from "./dom.mjs";

const ROW = 22;
const HEAD = 22;
const NARROW = 560;

export class Grid {
  /** `label` says what it is; `onChoose(row)` is called for a row that was clicked, or with Enter on it. */
  constructor({ label, onChoose }) {
    this.onChoose = onChoose;
    this.model = { name: "", rows: [], columns: [], value: () => 0, say: () => "", heading: () => "", most: 0, unit: 1, width: 24 };
    this.cursor = { row: 0, column: 0 };
    /** Whether somebody has moved the cursor; it then stays on its row wherever that goes. */
    this.moved = false;
    this.chosen = null;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.space = el("div", { className: "grid-space" }, this.canvas);
    this.frame = el(
      "div",
      {
        className: "grid",
        tabIndex: 0,
        role: "application",
        "aria-roledescription": "heat map",
        "aria-label": label,
        on: {
          scroll: () => this.soon(),
          keydown: (event) => this.key(event),
          pointermove: (event) => this.point(event),
          pointerleave: () => this.hover(null),
          click: (event) => this.click(event),
          focus: () => this.arrive(),
          blur: () => this.soon(),
        },
      },
      this.space,
    );
    this.reading = el("p", { className: "reading", role: "status", "aria-live": "polite" });
    this.low = el("span");
    this.high = el("span");
    this.bar = el("span", { className: "bar" });
    this.legend = el("p", { className: "legend" }, this.low, this.bar, this.high);
    this.element = el("div", {}, this.legend, this.frame, this.reading);
    this.frame.setAttribute("aria-describedby", (this.reading.id = `reading-${Grid.number++}`));
    this.hovered = null;
    new ResizeObserver(() => this.layout()).observe(this.frame);
  }

  static number = 0;

  /**
   * Shows a model: `name` says what is shown, `rows` and `columns` are lists of names, `value(row, column)` numbers (null: there is none), `most` the
   * largest of them, `unit` a small one, `say(row, column)` a sentence, `heading(column)` what stands above a column,
   * `width` the least width of a cell, `format(value)` a value's text.
   */
  update(model) {
    const kept = this.model.rows[this.cursor.row];
    const another = this.model.name !== model.name;
    const atEnd = this.cursor.column >= this.model.columns.length - 1;
    this.model = model;
    const row = this.moved ? model.rows.indexOf(kept) : 0;
    this.cursor.row = row >= 0 ? row : Math.min(this.cursor.row, Math.max(0, model.rows.length - 1));
    const last = Math.max(0, model.columns.length - 1);
    this.cursor.column = atEnd && model.follows ? last : Math.min(this.cursor.column, last);
    // A look that only brings newer numbers is not read aloud; the next key press is.
    if (another) this.read(this.cursor);
    setText(this.low, model.format(0));
    setText(this.high, model.format(model.most));
    this.layout();
  }

  /** The place of everything, and the size of what can be scrolled. */
  layout() {
    const width = this.frame.clientWidth;
    const names = width < NARROW ? 108 : 180;
    const { rows, columns } = this.model;
    const least = this.model.width;
    const cell = Math.max(least, (width - names) / Math.max(1, columns.length));
    const most = this.model.follows ? 24 : 96;
    this.place = { names, cell: Math.min(cell, most), width, height: this.frame.clientHeight };
    this.space.style.width = `${names + Math.ceil(columns.length * this.place.cell)}px`;
    this.space.style.height = `${HEAD + rows.length * ROW}px`;
    this.soon();
  }

  soon() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.draw();
    });
  }

  draw() {
    const { width, height, names, cell } = this.place ?? {};
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    const { canvas, model, frame } = this;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      [canvas.width, canvas.height] = [wide, high];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    }
    const [context, dark] = [canvas.getContext("2d"), isDark()];
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = color("panel");
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const [top, left] = [frame.scrollTop, frame.scrollLeft];
    const rows = [Math.floor(top / ROW), Math.min(model.rows.length, Math.ceil((top + height - HEAD) / ROW))];
    const columns = [Math.floor(left / cell), Math.min(model.columns.length, Math.ceil((left + width - names) / cell))];
    const x = (column) => names + column * cell - left;
    const y = (row) => HEAD + row * ROW - top;
    const gap = cell > 8 ? 1 : 0;
    for (let row = rows[0]; row < rows[1]; row += 1) {
      for (let column = columns[0]; column < columns[1]; column += 1) {
        const value = model.value(model.rows[row], column);
        if (!(value > 0)) continue;
        context.fillStyle = css(heat(0.08 + 0.92 * part(value, model.most, model.unit), dark));
        const from = Math.round(x(column));
        context.fillRect(from, y(row), Math.max(1, Math.round(x(column + 1)) - from - gap), ROW - 1);
      }
    }
    this.mark(context, x, y, cell);
    this.texts(context, rows, columns, x, y);
    this.bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((at) => css(heat(at, dark))).join(", ")})`;
  }

  /** The cell below the cursor, or below the pointer. */
  mark(context, x, y, cell) {
    const at = this.hovered ?? (document.activeElement === this.frame ? this.cursor : null);
    if (!at || !this.model.rows.length) return;
    context.lineWidth = 2;
    context.strokeStyle = color("text");
    context.strokeRect(x(at.column), y(at.row), Math.max(4, cell), ROW - 1);
    context.strokeStyle = color("panel");
    context.lineWidth = 1;
    context.strokeRect(x(at.column) - 2, y(at.row) - 2, Math.max(4, cell) + 4, ROW + 3);
  }

  texts(context, rows, columns, x, y) {
    const { names, cell, width, height } = this.place;
    context.fillStyle = color("panel");
    context.fillRect(0, 0, names, height);
    context.fillRect(0, 0, width, HEAD);
    context.save();
    context.beginPath();
    context.rect(0, HEAD, names - 6, height - HEAD);
    context.clip();
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const name = this.model.rows[row];
      context.fillStyle = color(name === this.chosen ? "accent" : "text");
      context.fillText(name, 4, y(row) + ROW / 2);
    }
    context.restore();
    context.fillStyle = color("muted");
    // As many headings as there is room for.
    const every = this.model.follows ? Math.max(1, Math.ceil(64 / cell)) : 1;
    for (let column = Math.ceil(columns[0] / every) * every; column < columns[1]; column += every) {
      if (x(column) < names - 1) continue;
      context.fillText(this.model.heading(column), x(column), HEAD / 2, every * cell - 4);
    }
  }

  /** The cell at a place of the pointer; `null` beside all of them. */
  at(event) {
    const box = this.frame.getBoundingClientRect();
    const { names, cell } = this.place;
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor((top - HEAD + this.frame.scrollTop) / ROW);
    if (top < HEAD || row < 0 || row >= this.model.rows.length) return null;
    const column = Math.floor((left - names + this.frame.scrollLeft) / cell);
    const inside = left >= names && column < this.model.columns.length;
    return { row, column: inside ? column : this.cursor.column, inside };
  }

  point(event) {
    const at = this.at(event);
    this.hover(at?.inside ? at : null);
  }

  hover(at) {
    this.hovered = at;
    const shown = at ?? this.cursor;
    this.read(shown);
    this.soon();
  }

  click(event) {
    const at = this.at(event);
    if (!at) return;
    this.cursor = { row: at.row, column: at.column };
    this.moved = true;
    this.arrive();
    this.choose();
  }

  choose() {
    const row = this.model.rows[this.cursor.row];
    if (row === undefined) return;
    this.chosen = row;
    this.onChoose?.(row);
    this.soon();
  }

  key(event) {
    const page = Math.max(1, Math.floor((this.place.height - HEAD) / ROW) - 1);
    const { cursor, model } = this;
    const step = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowUp: () => (cursor.row -= step),
      ArrowDown: () => (cursor.row += step),
      ArrowLeft: () => (cursor.column -= step),
      ArrowRight: () => (cursor.column += step),
      PageUp: () => (cursor.row -= page),
      PageDown: () => (cursor.row += page),
      Home: () => (event.ctrlKey ? (cursor.row = 0) : (cursor.column = 0)),
      End: () => (event.ctrlKey ? (cursor.row = model.rows.length) : (cursor.column = model.columns.length)),
    };
    if (event.key === "Enter" || event.key === " ") this.choose();
    else if (moves[event.key]) moves[event.key]();
    else return;
    event.preventDefault();
    this.hovered = null;
    this.moved = true;
    cursor.row = Math.min(Math.max(0, cursor.row), Math.max(0, model.rows.length - 1));
    cursor.column = Math.min(Math.max(0, cursor.column), Math.max(0, model.columns.length - 1));
    this.arrive();
  }

  /** Brings the cursor into sight and says what is there. */
  arrive() {
    const { names, cell, width, height } = this.place;
    const [top, left] = [this.cursor.row * ROW, this.cursor.column * cell];
    const frame = this.frame;
    if (top < frame.scrollTop) frame.scrollTop = top;
    if (top + ROW > frame.scrollTop + height - HEAD) frame.scrollTop = top + ROW - height + HEAD;
    if (left < frame.scrollLeft) frame.scrollLeft = left;
    if (left + cell > frame.scrollLeft + width - names) frame.scrollLeft = left + cell - width + names;
    this.read(this.cursor);
    this.soon();
  }

  read({ row, column }) {
    const name = this.model.rows[row];
    setText(this.reading, name === undefined ? "" : this.model.say(name, column));
  }
}
