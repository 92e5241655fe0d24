// A line, or a stack of areas, over the last hour.

import { el, put, svg } from "./dom.js";
import { duration } from "./format.js";

const HEIGHT = 168;
const KEEP_S = 3600;
// History has a sample a minute.
const GAP_S = 150;

export class Chart {
  constructor(figure, { title, series, stacked = false, format }) {
    Object.assign(this, { title, series, stacked, format, samples: [], pointed: null });
    this.values = series.map(() => el("b", {}, "–"));
    const legend = series.map(([name, kind], at) =>
      el("li", { class: kind }, el("i", { "aria-hidden": "true" }), el("span", {}, name), this.values[at]));
    this.when = el("span", { class: "dim" });
    this.picture = svg("svg", { role: "img", height: HEIGHT });
    const caption = el("figcaption", {}, el("h2", {}, title), this.when, el("ul", { class: "legend" }, ...legend));
    figure.replaceChildren(caption, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  add(values) {
    const now = Date.now() / 1000;
    this.samples.push({ at: now, values, live: true });
    while (this.samples[0].at < now - KEEP_S) this.samples.shift();
    this.draw();
  }

  // Puts history before the samples that were added here.
  begin(history) {
    const first = this.samples.find(({ live }) => live)?.at ?? Infinity;
    const now = Date.now() / 1000;
    const before = history.filter(({ at }) => at < first && at >= now - KEEP_S);
    this.samples = [...before, ...this.samples.filter(({ live }) => live)];
    this.draw();
  }

  point(x) {
    this.pointed = x;
    this.draw();
  }

  // The upper edges of a sample's areas.
  tops({ values }) {
    let sum = 0;
    return this.stacked ? values.map((value) => (sum += value)) : values;
  }

  draw() {
    const width = this.picture.clientWidth, last = this.samples.at(-1);
    if (!width || !last) return;
    const frame = { left: 46, right: width - 6, top: 8, bottom: HEIGHT - 22 };
    const range = Math.max(60, Math.min(KEEP_S, last.at - this.samples[0].at));
    const max = roundUp(Math.max(1, ...this.samples.flatMap((sample) => this.tops(sample))));
    const x = (at) => frame.right - ((last.at - at) / range) * (frame.right - frame.left);
    const y = (value) => frame.bottom - (value / max) * (frame.bottom - frame.top);
    const shown = this.pointed === null ? last : this.nearest(this.pointed, x);
    const parts = [...this.rules(frame, max, y), ...ticks(frame, range)];
    for (const run of this.runs()) parts.push(...this.areas(run, x, y));
    if (this.pointed !== null) {
      parts.push(svg("line", { class: "cross", x1: x(shown.at), x2: x(shown.at), y1: frame.top, y2: frame.bottom }));
    }
    this.picture.replaceChildren(...parts);
    this.values.forEach((node, at) => put(node, this.format(shown.values[at])));
    put(this.when, this.pointed === null ? "" : `${duration(Date.now() / 1000 - shown.at)} ago`);
    const spoken = this.series.map(([name], at) => `${name} ${this.format(last.values[at])}`);
    this.picture.setAttribute("aria-label", `${this.title}, now: ${spoken.join(", ")}`);
  }

  rules({ left, right }, max, y) {
    return [0, max / 2, max].flatMap((value) => [
      svg("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
  }

  areas(run, x, y) {
    const join = (points) => points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
    return this.series.flatMap(([, kind], at) => {
      const edge = run.map((sample) => [sample.at, this.tops(sample)[at]]);
      const floor = run.map((sample) => [sample.at, this.stacked && at > 0 ? this.tops(sample)[at - 1] : 0]);
      const line = svg("path", { class: `line ${kind}`, d: `M${join(edge)}` });
      if (!this.stacked && at > 0) return [line];
      return [svg("path", { class: `area ${kind}`, d: `M${join(edge)}L${join(floor.reverse())}Z` }), line];
    });
  }

  // The samples, split where polling was paused.
  runs() {
    const runs = [];
    let before = -Infinity;
    for (const sample of this.samples) {
      if (sample.at - before > GAP_S) runs.push([]);
      runs.at(-1).push(sample);
      before = sample.at;
    }
    return runs;
  }

  nearest(px, x) {
    const distance = (sample) => Math.abs(x(sample.at) - px);
    return this.samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
  }
}

function ticks({ left, right }, range) {
  return [[1, "start"], [0.5, "middle"], [0, "end"]].map(([share, anchor]) => {
    const text = share === 0 ? "now" : `−${duration(range * share)}`;
    const x = right - share * (right - left);
    return svg("text", { class: "tick", x, y: HEIGHT - 5, "text-anchor": anchor }, text);
  });
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
}
