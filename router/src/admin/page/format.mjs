// Numbers as people read them. `null` and `undefined` mean "not known", and are shown as a dash.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function scaled(value, base, units) {
  let at = 0;
  let shown = value;
  while (at < units.length - 1 && Math.abs(shown) >= base * 0.9995) {
    shown /= base;
    at += 1;
  }
  const digits = at === 0 || Math.abs(shown) >= 99.95 ? 0 : Math.abs(shown) >= 9.995 ? 1 : 2;
  return [shown.toFixed(digits), units[at]];
}

/** Bytes: `1.50 MiB`. */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]).join(" ");
}

/** A whole number with a thin space between thousands: `12 345`. */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** Something per second: `0.3`, `12`, `1.20 k`. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  if (value < 10) return value.toFixed(1);
  const [shown, unit] = scaled(value, 1000, ["", "k", "M"]);
  return unit ? `${shown} ${unit}` : shown;
}

/** Seconds: `350 µs`, `1.2 ms`, `4.0 s`, `3 min`, `2 h`. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** A part of a whole, in hundredths. */
export function percent(part, whole) {
  if (!known(part) || !(whole > 0)) return UNKNOWN;
  return `${Math.round((part / whole) * 100)} %`;
}

/** The time of day of seconds since the epoch, on this machine's clock. */
export function clock(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}

/** The day and the time of day of seconds since the epoch, on this machine's clock. */
export function moment(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const at = new Date(seconds * 1000);
  const day = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((n) => String(n).padStart(2, "0")).join("-");
  return `${day} ${clock(seconds)}`;
}

/** `1 store`, `2 stores`. */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
