// Sorting of tables.

const letters = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const isUnknown = (value) => value === null || value === undefined || Number.isNaN(value);

/** Compares two values of a column: numbers by size, text with its numbers by size. */
export function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return letters.compare(String(one), String(other));
}

/**
 * A sorted copy. `of` gives a row's value; what is not known comes last in both directions, and rows with the same value
 * keep their order.
 */
export function sorted(rows, of, descending) {
  const keyed = rows.map((row) => [of(row), row]);
  keyed.sort(([one], [other]) => {
    const [less, more] = [isUnknown(one), isUnknown(other)];
    if (less || more) return less - more;
    return descending ? compare(other, one) : compare(one, other);
  });
  return keyed.map(([, row]) => row);
}
