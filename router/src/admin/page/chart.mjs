// Lines over time, drawn by uPlot. What a chart says is in its label too.

import { color, el } from "./dom.mjs";
import { clock } from "./format.mjs";

const HEIGHT = 140;

export class Chart {
  /** `format` makes text of a value; `label` says what is drawn. */
  constructor(label, format) {
    this.label = label;
    this.format = format;
    this.plot = null;
    this.data = null;
    this.box = el("div", { className: "plot", role: "img", "aria-label": label });
    this.element = el("figure", { className: "chart" }, el("figcaption", { textContent: label }), this.box);
    this.watching = new ResizeObserver(() => this.resize());
    this.watching.observe(this.box);
  }

  update(times, values) {
    this.data = [times, values];
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
    const there = values.filter((value) => value !== null);
    const last = there.length ? this.format(there.at(-1)) : "nothing yet";
    const most = there.length ? this.format(Math.max(...there)) : "nothing yet";
    this.box.setAttribute("aria-label", `${this.label}, last hour: now ${last}, at most ${most}`);
  }

  /** Draws it anew, as after a change of colours. */
  redraw() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return;
    const axis = {
      stroke: color("muted"),
      grid: { stroke: color("line"), width: 1 },
      ticks: { stroke: color("line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const times = (_, all) => all.map((at) => clock(at).slice(0, all.at(-1) - all[0] < 120 ? 8 : 5));
    const values = (_, all) => all.map((value) => (value === null ? "" : this.format(value)));
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, 0.001) * 1.1] } },
      axes: [{ ...axis, size: 28, space: 70, values: times }, { ...axis, size: 70, values }],
      series: [{}, { stroke: color("accent"), width: 2, fill: color("accent-soft"), points: { show: false } }],
    };
    this.plot = new window.uPlot(options, this.data, this.box);
  }

  resize() {
    const width = this.box.clientWidth;
    if (!width || !this.data) return;
    if (this.plot) {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
    } else {
      this.draw();
    }
  }
}
