// A table that can be sorted by its headings. Rows are kept from look to look, so that focus and selection stay.

import { el, setText } from "./dom.mjs";
import { sorted } from "./sort.mjs";

export class Table {
  /**
   * `columns` are objects: `label`; `value(row)`, by which rows are sorted; `text(row)`, if that is shown otherwise; or
   * `fill(cell, row)`, which fills the cell itself; `number` puts the column to the right. `key(row)` names a row.
   */
  constructor({ id, label, columns, key, sort, empty, rowClass }) {
    this.columns = columns;
    this.key = key;
    this.sort = sort ?? null;
    this.rows = [];
    this.kept = new Map();
    this.rowClass = rowClass;
    this.heads = columns.map((column, at) => this.heading(column, at));
    this.body = el("tbody");
    this.none = el("p", { className: "none", textContent: empty ?? "none", hidden: true });
    this.table = el(
      "table",
      { id },
      el("caption", { className: "unseen", textContent: label }),
      el("thead", {}, el("tr", {}, ...this.heads)),
      this.body,
    );
    const frame = { className: "frame", tabIndex: 0, role: "region", "aria-label": label };
    this.element = el("div", {}, el("div", frame, this.table), this.none);
    this.mark();
  }

  heading(column, at) {
    const className = column.number ? "number" : "";
    if (!column.value) return el("th", { scope: "col", className }, column.label);
    const button = el("button", { type: "button", on: { click: () => this.sortBy(at) } }, column.label);
    return el("th", { scope: "col", className }, button);
  }

  sortBy(at) {
    const descending = this.sort?.at === at ? !this.sort.descending : Boolean(this.columns[at].number);
    this.sort = { at, descending };
    this.mark();
    this.update(this.rows, true);
  }

  mark() {
    this.heads.forEach((head, at) => {
      if (this.sort?.at === at) head.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  /** Shows rows. While somebody points at the table, or is in it, rows stay where they are unless `anew`. */
  update(rows, anew = false) {
    this.rows = rows;
    const shown = anew || !this.isUsed() ? this.inOrder(rows) : this.asTheyAre(rows);
    const there = new Set();
    let before = null;
    for (const row of shown) {
      const key = this.key(row);
      there.add(key);
      let kept = this.kept.get(key);
      if (!kept) {
        kept = el("tr", {}, ...this.columns.map((column, at) => this.cell(column, at)));
        this.kept.set(key, kept);
      }
      if (this.rowClass) kept.className = this.rowClass(row);
      this.columns.forEach((column, at) => fill(kept.cells[at], column, row));
      const wanted = before ? before.nextSibling : this.body.firstChild;
      // Moving a row takes the focus from what is in it, so only those that are elsewhere move.
      if (wanted !== kept) this.body.insertBefore(kept, wanted);
      before = kept;
    }
    for (const [key, kept] of this.kept) {
      if (!there.has(key)) {
        kept.remove();
        this.kept.delete(key);
      }
    }
    this.none.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
  }

  isUsed() {
    return this.body.contains(document.activeElement) || this.body.matches(":hover");
  }

  inOrder(rows) {
    return this.sort ? sorted(rows, this.columns[this.sort.at].value, this.sort.descending) : rows;
  }

  asTheyAre(rows) {
    const places = new Map([...this.body.children].map((kept, at) => [kept, at]));
    const place = (row) => places.get(this.kept.get(this.key(row))) ?? places.size;
    return sorted(rows, place, false);
  }

  cell(column, at) {
    const className = column.number ? "number" : "";
    return at === 0 ? el("th", { scope: "row", className }) : el("td", { className });
  }
}

function fill(cell, column, row) {
  if (column.fill) column.fill(cell, row);
  else setText(cell, column.text ? column.text(row) : String(column.value(row) ?? ""));
}
