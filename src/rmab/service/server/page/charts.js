// Charts of lines: what is drawn of them, and how their values are read by pointer and by key.

import { draw, key, make, mark } from "./elements.js";
import { ticks } from "./words.js";

/** [low, high] that holds all finite values, with room at both ends. */
export function extent(values, room = 0.06) {
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (low > high) return [0, 1];
  const pad = high > low ? room * (high - low) : Math.abs(high) * 0.1 || 0.5;
  return [low - pad, high + pad];
}

/**
 * A chart of lines over one axis, in a box of any width. Pointing at it, or focusing it and using
 * the arrow keys, moves a cursor over its stops and shows their values.
 *
 * What it shows: {x: [low, high], y: [low, high], xLabel, yLabel, label,
 *   lines: [{kind, points: [[x, y], ...]}], dots: [[x, y], ...], levels: [{y, kind}],
 *   stops: [{x, title, values: [{kind, name, y, text}]}]}
 */
export class Chart {
  constructor(box, height) {
    this.box = box;
    this.height = height;
    this.svg = draw("svg", { role: "img" });
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    box.append(this.svg, this.tip);
    box.tabIndex = 0;
    mark(box, "role", "group");
    this.tip.setAttribute("role", "status");
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerdown", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("blur", () => this.leave());
    box.addEventListener(
      "focus",
      () => this.at === undefined && box.matches(":focus-visible") && this.go(Infinity),
    );
    box.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.box.clientWidth !== this.width && this.paint()).observe(box);
  }

  show(shown) {
    this.shown = shown;
    this.paint();
  }

  paint() {
    const { shown, height } = this;
    const width = (this.width = this.box.clientWidth);
    if (!shown || width < 50) return;
    const yTicks = ticks(...shown.y, height / (shown.yLabel ? 50 : 32));
    const left = 10 + 6.6 * Math.max(...yTicks.map(({ text }) => text.length));
    const edge = {
      left,
      right: width - 10,
      top: shown.yLabel ? 28 : 8,
      bottom: height - (shown.xLabel ? 40 : 20),
    };
    const scale =
      ([low, high], from, to) =>
      (v) =>
        from + ((v - low) / (high - low)) * (to - from);
    this.x = scale(shown.x, edge.left, edge.right);
    this.y = scale(shown.y, edge.bottom, edge.top);
    this.edge = edge;
    const at = (value) => value.toFixed(1);
    const parts = [];
    for (const { at: v, text } of yTicks) {
      const y = at(this.y(v));
      parts.push(draw("path", { class: "grid", d: `M${edge.left} ${y}H${edge.right}` }));
      parts.push(draw("text", { x: edge.left - 6, y, dy: "0.32em", "text-anchor": "end" }, text));
    }
    parts.push(draw("path", { class: "axis", d: `M${edge.left} ${edge.bottom}H${edge.right}` }));
    for (const { at: v, text } of ticks(...shown.x, (width - left) / (shown.xLabel ? 90 : 55))) {
      const x = at(this.x(v));
      parts.push(draw("path", { class: "axis", d: `M${x} ${edge.bottom}v4` }));
      parts.push(draw("text", { x, y: edge.bottom + 16, "text-anchor": "middle" }, text));
    }
    if (shown.xLabel)
      parts.push(
        draw("text", { x: edge.right, y: height - 6, "text-anchor": "end" }, shown.xLabel),
      );
    if (shown.yLabel) parts.push(draw("text", { x: 0, y: 11 }, shown.yLabel));
    for (const level of shown.levels) {
      parts.push(
        draw("path", {
          class: level.kind,
          d: `M${edge.left} ${at(this.y(level.y))}H${edge.right}`,
        }),
      );
    }
    if (shown.dots?.length) {
      const d = shown.dots.map(([x, y]) => `M${at(this.x(x))} ${at(this.y(y))}h0`).join("");
      parts.push(draw("path", { class: "dots", d }));
    }
    for (const { kind, points } of shown.lines) {
      let pen = "M";
      let d = "";
      for (const [x, y] of points) {
        if (Number.isFinite(y)) d += `${pen}${at(this.x(x))} ${at(this.y(y))}`;
        pen = Number.isFinite(y) ? "L" : "M";
      }
      if (d && !d.includes("L")) d += "h0";
      parts.push(draw("path", { class: kind, d }));
    }
    this.cursor = draw("g", { "aria-hidden": "true" });
    this.svg.replaceChildren(...parts, this.cursor);
    mark(this.svg, "viewBox", `0 0 ${width} ${height}`);
    mark(this.svg, "height", String(height));
    mark(this.svg, "aria-label", shown.label);
    mark(this.box, "aria-label", `${shown.about}; arrow keys read its values`);
    if (this.at !== undefined) this.go(this.at);
  }

  point(event) {
    if (!this.shown) return;
    const from = this.edge.left;
    const [low, high] = this.shown.x;
    const inside = event.clientX - this.box.getBoundingClientRect().left - from;
    this.go(low + (inside / (this.edge.right - from)) * (high - low));
  }

  press(event) {
    const stops = this.shown?.stops ?? [];
    const now = stops.findIndex(({ x }) => x === this.at);
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: stops.length - 1 };
    if (event.key === "Escape") return this.leave();
    if (!(event.key in moves) || !stops.length) return;
    event.preventDefault();
    this.go(stops[Math.min(Math.max(moves[event.key], 0), stops.length - 1)].x);
  }

  /** Put the cursor on the stop nearest to x. */
  go(x) {
    const stops = this.shown?.stops ?? [];
    if (!stops.length || !this.cursor) return this.leave();
    const target = Math.min(Math.max(x, stops[0].x), stops[stops.length - 1].x);
    const stop = stops.reduce((a, b) => (Math.abs(b.x - target) < Math.abs(a.x - target) ? b : a));
    this.at = stop.x;
    const left = this.x(stop.x);
    const spots = stop.values.filter(({ y, kind }) => kind && Number.isFinite(y));
    this.cursor.replaceChildren(
      draw("path", { class: "cursor", d: `M${left} ${this.edge.top}V${this.edge.bottom}` }),
      ...spots.map(({ y, kind }) =>
        draw("circle", { class: `spot ${kind}`, cx: left, cy: this.y(y), r: 4 }),
      ),
    );
    const rows = stop.values.map(({ kind, name, text }) => {
      const row = make("span");
      if (kind) row.append(key(kind, 14));
      row.append(name, " ", make("i", "", text));
      return row;
    });
    this.tip.replaceChildren(make("b", "", stop.title), ...rows);
    this.tip.hidden = false;
    this.place(
      left,
      spots.map(({ y }) => this.y(y)),
    );
  }

  /** Put the values beside the cursor: above a low chart, else away from the line. */
  place(left, spots) {
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const { top, bottom } = this.edge;
    const room = Math.max(0, this.width - width);
    const beside = left + 14 <= room ? left + 14 : left - 14 - width;
    let from = Math.max(...spots, 0) < (top + bottom) / 2 ? bottom - height - 6 : top;
    if (height > 0.75 * (bottom - top)) from = top - height - 2;
    const across = Math.min(Math.max(beside, 0), room);
    this.tip.style.transform = `translate(${Math.round(across)}px, ${Math.round(from)}px)`;
  }

  leave() {
    this.at = undefined;
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }
}
