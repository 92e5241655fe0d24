// Numbers, sizes and times as text. An unknown value is a dash.

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (typeof value === "number" ? whole.format(value) : UNKNOWN);

// At most five characters, for tiles and columns.
export function brief(value) {
  if (typeof value !== "number") return UNKNOWN;
  return Math.abs(value) < 10_000 ? whole.format(value) : compact.format(value);
}

export function rate(value) {
  if (typeof value !== "number") return UNKNOWN;
  return value > 0 && value < 10 ? value.toFixed(1) : brief(value);
}

export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export function bytes(value) {
  if (typeof value !== "number") return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit > 0 && value < 10 ? value.toFixed(1) : whole.format(value)} ${units[unit]}`;
}

export const throughput = (value) => (typeof value === "number" ? `${bytes(value)}/s` : UNKNOWN);

export function duration(seconds) {
  if (typeof seconds !== "number") return UNKNOWN;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${whole.format(Math.floor(s / 86_400))} d ${Math.floor((s % 86_400) / 3600)} h`;
}

const isTime = (iso) => Boolean(iso) && !Number.isNaN(Date.parse(iso));

export function ago(iso) {
  if (!isTime(iso)) return UNKNOWN;
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  return seconds < 2 ? "just now" : `${duration(seconds)} ago`;
}

export const localTime = (iso) => (isTime(iso) ? new Date(iso).toLocaleString() : "");

// When something is due.
export function until(iso) {
  if (!isTime(iso)) return UNKNOWN;
  const seconds = (Date.parse(iso) - Date.now()) / 1000;
  return seconds < 1 ? "due now" : `in ${duration(seconds)}`;
}
