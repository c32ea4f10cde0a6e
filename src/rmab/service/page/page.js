// The page of a federation: asks /v1/overview every second and draws the answer.
//
// Rules. Text from the server enters the document through textContent alone. Nothing comes from
// another origin. What did not change is not touched, so that focus, selection and scrolling stay.
// Times are told by the server's clock (`now` in its answer), not by this machine's.

const EVERY = 1000; // ms from one answer to the next question
const PATIENCE = 5000; // ms after which a question counts as unanswered
const LONGEST_PAUSE = 5000; // ms between tries while the connection is lost
const WINDOW = 10; // rounds in the running mean of the reward
const MOST = { arms: [12, 4], agents: [15, 6], rounds: [10, 5] }; // shown at first: desktop, phone
const COLOURS = 6; // lines of later states repeat the colours, dashed

const $ = (id) => document.getElementById(id);
const phone = window.matchMedia("(max-width: 40rem)");
const most = (what) => MOST[what][phone.matches ? 1 : 0];

/** What the operator chose on the page. */
const chosen = {
  time: "slots",
  order: "number",
  agents: "all",
  allArms: false,
  allAgents: false,
  allRounds: false,
};

// ---- Numbers and times -------------------------------------------------------------------------

const MISSING = "–";

/** A number from the wire, where "inf" and "-inf" stand for what JSON has no number for. */
const number = (value) =>
  value === "inf"
    ? Infinity
    : value === "-inf"
      ? -Infinity
      : typeof value === "number"
        ? value
        : NaN;

/** .985, 1.000, −.012; more digits before the point leave fewer after it. */
function decimal(value, places = 3) {
  const x = number(value);
  if (Number.isNaN(x)) return MISSING;
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const digits = Math.max(0, places - Math.max(0, Math.floor(Math.log10(Math.abs(x) || 1))));
  const shown = Math.abs(x).toFixed(digits);
  const sign = x < 0 && Number(shown) !== 0 ? "−" : "";
  return sign + (shown.startsWith("0.") ? shown.slice(1) : shown);
}

/** As short as it can be: 0, .4, 1.25. */
const plain = (value) =>
  decimal(value)
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "") || "0";

const whole = (value) => (Number.isFinite(number(value)) ? value.toLocaleString("en") : MISSING);

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** Whole numbers that fit where there is little room: 123,456, then 1.235M. */
const brief = (value) => (value < 1e6 ? whole(value) : COMPACT.format(value));

const percent = (share) => `${(100 * share).toFixed(1)} %`;

const counted = (n, one, more = `${one}s`) => `${whole(n)} ${n === 1 ? one : more}`;

function duration(seconds) {
  if (!(seconds >= 0)) return MISSING;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** A duration without parts of a second. */
const seconds = (span) => duration(Math.max(0, Math.floor(span))).replace(".0", "");

const ago = (span) => (span < 1 ? "now" : `${seconds(span)} ago`);

const clock = (date) => date.toLocaleTimeString("en-GB");

const moment = (unix) =>
  new Date(1000 * unix).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// ---- The document ------------------------------------------------------------------------------

/** Set text only where it differs. */
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** An HTML element; text is text. */
function make(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text) node.textContent = text;
  return node;
}

function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const key = (kind, width = 24) =>
  draw(
    "svg",
    { class: "key", viewBox: `0 0 ${width} 12`, "aria-hidden": "true" },
    draw("path", { class: kind, d: `M1 6h${width - 2}` }),
  );

const lineOf = (state) => `state s${state % COLOURS}${state >= COLOURS ? " later" : ""}`;

// ---- Charts ------------------------------------------------------------------------------------

/** Round numbers from low to high, about `count` of them, with the text of each. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.75);
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) {
    const at = i * step;
    const text =
      Math.abs(at) < 1000
        ? at
            .toFixed(places)
            .replace(/^(-?)0\./, "$1.")
            .replace("-", "−")
        : at.toLocaleString("en");
    found.push({ at, text: i === 0 ? "0" : text });
  }
  return found;
}

/** [low, high] that holds all finite values, with room at both ends. */
function extent(values, room = 0.06) {
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
class Chart {
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

// ---- Reward ------------------------------------------------------------------------------------

/** Rounds with the agent slots up to their end and the mean of the last WINDOW rounds by slots. */
function course(overview) {
  const rounds = overview.rewards.filter(
    ({ slots, reward }) => slots > 0 && typeof reward === "number",
  );
  const listed = rounds.reduce((sum, { slots }) => sum + slots, 0);
  let end = Math.max(0, overview.slots - listed); // rounds older than the list, or not closed yet
  if (rounds.length && rounds[0].round === 1) end = 0;
  return rounds.map((round, i) => {
    const last = rounds.slice(Math.max(0, i + 1 - WINDOW), i + 1);
    const weight = last.reduce((sum, { slots }) => sum + slots, 0);
    end += round.slots;
    return {
      ...round,
      end,
      mean: last.reduce((sum, { slots, reward }) => sum + slots * reward, 0) / weight,
    };
  });
}

let rewardChart;

function showReward(overview, rounds) {
  const known = typeof overview.reference === "number";
  $("reward-card").hidden = !rounds.length;
  $("empty").hidden = rounds.length > 0;
  if (!rounds.length) return showEmpty(overview);
  const latest = rounds[rounds.length - 1];
  put($("reward-mean-key"), `mean of the last ${WINDOW} rounds`);
  $("reward-reference-key").hidden = !known;
  put($("reward-reference-text"), `known dynamics, ${decimal(overview.reference)}`);
  put(
    $("reward-note"),
    `Per agent and slot. The line weights each of the last ${WINDOW} rounds by its slots; ` +
      `its first ${WINDOW - 1} points have fewer rounds behind them.` +
      (rounds[0].round > 1 ? ` Rounds ${whole(rounds[0].round)} to ${whole(latest.round)}.` : ""),
  );
  const bySlots = chosen.time === "slots";
  const x = (round) => (bySlots ? round.end : round.round);
  const start = bySlots ? rounds[0].end - rounds[0].slots : rounds[0].round - 1;
  rewardChart ??= new Chart($("reward-chart"), 280);
  rewardChart.show({
    x: [start, x(latest)],
    y: extent([
      ...rounds.flatMap(({ reward, mean }) => [reward, mean]),
      known ? overview.reference : NaN,
    ]),
    xLabel: bySlots ? "slots of all agents" : "round",
    yLabel: "reward per agent and slot",
    about: "Reward over time",
    label:
      `Mean reward of the last ${WINDOW} rounds by ${bySlots ? "slots of all agents" : "round"}: ` +
      `${decimal(rounds[0].mean)} after round ` +
      `${rounds[0].round}, ${decimal(latest.mean)} after round ${latest.round}` +
      (known ? `; with known dynamics ${decimal(overview.reference)}` : ""),
    lines: [{ kind: "mean", points: rounds.map((round) => [x(round), round.mean]) }],
    dots: rounds.map((round) => [x(round), round.reward]),
    levels: known ? [{ y: overview.reference, kind: "level" }] : [],
    stops: rounds.map((round) => ({
      x: x(round),
      title: `Round ${whole(round.round)}`,
      values: [
        { kind: "mean", name: `last ${WINDOW} rounds`, y: round.mean, text: decimal(round.mean) },
        { name: "this round", text: decimal(round.reward) },
        { name: "its slots", text: whole(round.slots) },
        { name: "slots so far", text: whole(round.end) },
      ],
    })),
  });
}

function showEmpty(overview) {
  const enrolled = overview.agents.filter(({ revoked }) => revoked === null);
  const live = enrolled.filter((agent) => agent.live);
  put(
    $("empty-title"),
    overview.uploads > 0
      ? `${counted(overview.uploads, "upload")}, no round closed yet`
      : "No uploads yet",
  );
  put(
    $("empty-agents"),
    live.length
      ? `${counted(live.length, "agent")} at work in round ${whole(overview.round)}; ` +
          "its reward shows when it closes."
      : (enrolled.length
          ? `${counted(enrolled.length, "agent")} enrolled, none at work. `
          : "No agent is enrolled. ") + "Make an agent's credential, then start it:",
  );
  $("empty-commands").hidden = live.length > 0;
  put(
    $("empty-commands"),
    "rmab enroll FEDERATION.toml NAME > NAME.token\n" +
      `rmab agent ${location.origin} --token-file NAME.token --env MODULE:CLASS`,
  );
}

// ---- Arms --------------------------------------------------------------------------------------

const estimated = (value) => value && Number.isFinite(number(value.mean));
const interval = ({ low, high }) => `${decimal(low)}–${decimal(high)}`;

/** One probability as a bar from low to high on an axis from 0 to 1. */
function rangeBar(name, value) {
  const row = make("div", "range");
  row.append(make("span", "", name));
  const at = (p) => `${(100 * Math.min(Math.max(number(p), 0), 1)).toFixed(2)}%`;
  const bar = draw("svg", { "aria-hidden": "true" });
  for (const tick of [0, 0.25, 0.5, 0.75, 1])
    bar.append(draw("line", { class: "grid", x1: at(tick), x2: at(tick), y1: 2, y2: 18 }));
  bar.append(draw("line", { class: "axis", x1: 0, x2: "100%", y1: 10, y2: 10 }));
  const words = make("span", "value", estimated(value) ? decimal(value.mean) : "unknown");
  if (estimated(value)) {
    bar.append(
      draw("line", { class: "interval", x1: at(value.low), x2: at(value.high), y1: 10, y2: 10 }),
    );
    bar.append(draw("circle", { class: "point", cx: at(value.mean), cy: 10, r: 4 }));
    words.append(" ", make("small", "", interval(value)));
  }
  row.append(bar, words);
  return row;
}

function rangeScale() {
  const row = make("div", "range scale");
  const scale = make("div");
  scale.append(...["0", ".5", "1"].map((text) => make("span", "", text)));
  row.setAttribute("aria-hidden", "true");
  row.append(make("span"), scale, make("span"));
  return row;
}

/** A matrix of probabilities: row from, column to. */
function heatTable(n, transitions) {
  const table = make("table", "heat");
  const head = table.createTHead().insertRow();
  head.append(
    make("th", "", "from \\ to"),
    ...transitions.map((_, to) => make("th", "", String(to))),
  );
  for (const cell of head.cells) cell.scope = "col";
  const body = table.createTBody();
  transitions.forEach((row, from) => {
    const line = body.insertRow();
    const name = make("th", "", String(from));
    name.scope = "row";
    line.append(name);
    for (const value of row) {
      const cell = make("td", "", estimated(value) ? decimal(value.mean) : MISSING);
      if (estimated(value)) {
        const strength = 0.06 + 0.44 * Math.min(Math.max(value.mean, 0), 1);
        cell.style.backgroundColor = `rgba(var(--heat), ${strength.toFixed(2)})`;
        cell.append(" ", make("small", "", `${decimal(value.low, 2)}–${decimal(value.high, 2)}`));
      }
      line.append(cell);
    }
  });
  mark(table, "aria-label", `Arm ${n}: probability of each state after each, with 95 % intervals`);
  const box = make("div", "heat-box");
  box.append(table);
  return box;
}

function dynamics(n, estimate) {
  if (estimate?.transitions) return [heatTable(n, estimate.transitions)];
  return [rangeBar("p01", estimate?.p01), rangeBar("p11", estimate?.p11), rangeScale()];
}

function sharePart(arm, overview) {
  const share = number(arm.share) || 0;
  const even = `${(100 * overview.plays) / overview.arms.length}%`; // of slots, with equal shares
  const played = `${Math.min(100, 100 * share * overview.plays).toFixed(2)}%`; // of the slots
  const words = make("p", "part", "Share of plays");
  const shown = make("span", "", `${percent(share)} `);
  shown.append(make("small", "", counted(arm.plays, "play")));
  words.append(" ", shown);
  const bar = draw(
    "svg",
    { "aria-hidden": "true" },
    draw("rect", { class: "track", width: "100%", height: 8, rx: 2 }),
    draw("rect", { class: "filled", width: played, height: 8, rx: 2 }),
    draw("line", { class: "even", x1: even, x2: even, y1: -2, y2: 10 }),
  );
  return [words, bar];
}

/** The ages drawn: up to where no index still moves by more than a fiftieth of the axis. */
function lastAge(arms, [low, high]) {
  let last = 5;
  let most = 1;
  for (const { index } of arms) {
    for (const line of index?.by_state ?? []) {
      most = Math.max(most, line.length);
      const settled = number(line[line.length - 1]);
      let age = line.length;
      while (age > last && !(Math.abs(number(line[age - 1]) - settled) > (high - low) / 50)) age--;
      last = Math.max(last, age);
    }
  }
  return { last: Math.min(most, Math.ceil(last * 1.15)), most };
}

function showIndex(card, n, arm, scale, last) {
  const { never, by_state: lines } = arm.index;
  const level = number(never);
  const shown = lines.map((line) => line.slice(0, last).map(number));
  card.chart ??= new Chart(card.chartBox, 118);
  card.chart.show({
    x: [1, Math.max(2, last)],
    y: scale,
    about: `Index of arm ${n} by age`,
    label:
      `Index of arm ${n} by age, from age 1 to ${last}. ` +
      shown
        .map(
          (line, s) =>
            `Last seen in state ${s}: ${decimal(line[0])} to ${decimal(line[line.length - 1])}. `,
        )
        .join("") +
      `Never seen: ${decimal(never)}.`,
    lines: shown.map((line, s) => ({ kind: lineOf(s), points: line.map((y, i) => [i + 1, y]) })),
    levels: Number.isFinite(level) ? [{ y: level, kind: "level" }] : [],
    stops: Array.from({ length: Math.max(0, ...shown.map((line) => line.length)) }, (_, i) => ({
      x: i + 1,
      title: `Age ${i + 1}`,
      values: [
        ...shown.map((line, s) => ({
          kind: lineOf(s),
          name: `seen ${s}`,
          y: line[i],
          text: decimal(line[i]),
        })),
        { kind: "level", name: "never seen", y: NaN, text: decimal(never) },
      ],
    })),
  });
}

const cards = [];

const ORDERS = {
  number: ["By number", () => 0],
  played: ["Most played", ({ share }) => -number(share)],
  unsure: ["Least certain", ({ estimate }) => -widest(estimate)],
};

/** The widest interval of an arm's estimate; 1 where there is none. */
function widest(estimate) {
  const found = (estimate?.transitions?.flat() ?? [estimate?.p01, estimate?.p11]).filter(estimated);
  return found.length ? Math.max(...found.map(({ low, high }) => high - low)) : 1;
}

function armCard() {
  const root = make("article", "arm");
  const card = {
    root,
    title: make("h3"),
    reward: make("p"),
    estimate: make("div"),
    share: make("div", "share"),
  };
  card.title.id = `arm-card-${cards.length + 1}`;
  mark(root, "aria-labelledby", card.title.id);
  card.chartBox = make("div", "chart");
  card.noIndex = make("p", "fine", "No index table that all agents share.");
  const header = make("header");
  header.append(card.title, card.reward);
  const part = (text) => make("p", "part", text);
  root.append(
    header,
    part("Dynamics"),
    card.estimate,
    part("Index by age"),
    card.chartBox,
    card.noIndex,
    card.share,
  );
  return card;
}

function showLegend(states) {
  if ($("arms-legend").dataset.states === String(states)) return;
  $("arms-legend").dataset.states = states;
  const entry = (kind, text) => {
    const item = make("span");
    item.append(key(kind), text);
    return item;
  };
  const lines = Array.from({ length: states }, (_, s) =>
    entry(lineOf(s), `index, last seen in state ${s}`),
  );
  if (states) lines.push(entry("level", "index, never seen"));
  const estimate = entry("interval", "mean and 95 % credible interval");
  estimate.firstChild.append(draw("circle", { class: "point", cx: 12, cy: 6, r: 4 }));
  $("arms-legend").replaceChildren(estimate, ...lines);
}

function showArms(overview) {
  const arms = overview.arms;
  const indexed = arms.filter(({ index }) => index);
  const scale = extent(
    indexed.flatMap(({ index }) => [number(index.never), ...index.by_state.flat().map(number)]),
  );
  const ages = lastAge(indexed, scale);
  const by = ORDERS[chosen.order][1];
  const order = arms.map((_, i) => i).sort((i, j) => by(arms[i]) - by(arms[j]) || i - j);
  const shown = chosen.allArms ? order : order.slice(0, most("arms"));
  put(
    $("arms-index-note"),
    ages.last < ages.most
      ? `It is drawn to age ${ages.last} of ${ages.most}: ` +
          "after that it moves by less than a fiftieth of the scale."
      : "",
  );
  $("arms-order").hidden = arms.length <= most("arms");
  showLegend(Math.max(0, ...indexed.map(({ index }) => index.by_state.length)));
  while (cards.length > shown.length) cards.pop().root.remove();
  shown.forEach((arm, i) => {
    if (!cards[i]) {
      cards[i] = armCard();
      $("arms-list").append(cards[i].root);
    }
    showArm(cards[i], arm, overview, scale, ages.last);
  });
  offerMore(
    $("arms-more"),
    arms.length,
    most("arms"),
    chosen.allArms,
    (n, all) => `Show ${all ? "all" : "only"} ${n} arms`,
  );
}

/** Draw one arm, unless its card shows it so already. */
function showArm(card, i, overview, scale, last) {
  const arm = overview.arms[i];
  const seen = JSON.stringify([i, arm, scale, last, overview.plays, overview.arms.length]);
  if (card.seen === seen) return;
  card.seen = seen;
  const two = arm.states === 2 && arm.reward[0] === 0;
  put(card.title, `Arm ${i + 1}`);
  put(
    card.reward,
    two ? `reward ${plain(arm.reward[1])}` : `rewards ${arm.reward.map(plain).join(", ")}`,
  );
  card.estimate.replaceChildren(...dynamics(i + 1, arm.estimate));
  card.chartBox.hidden = !arm.index;
  card.noIndex.hidden = Boolean(arm.index);
  if (arm.index) showIndex(card, i + 1, arm, scale, last);
  card.share.replaceChildren(...sharePart(arm, overview));
}

// ---- Tables ------------------------------------------------------------------------------------

function offerMore(button, total, few, all, words) {
  button.hidden = total <= few;
  put(button, all ? words(whole(few), false) : words(whole(total), true));
  mark(button, "aria-expanded", String(all));
}

/** Buttons of which one is pressed: {name: words}; a press redraws the page. */
function showChips(group, choice, words) {
  for (const [name, text] of Object.entries(words)) {
    const id = `${group.id}-${name}`;
    if (!$(id)) {
      const chip = make("button");
      chip.id = id;
      chip.type = "button";
      chip.addEventListener("click", () => {
        chosen[choice] = name;
        again();
      });
      group.append(chip);
    }
    $(id).hidden = text === null;
    if (text !== null) put($(id), text);
    mark($(id), "aria-pressed", String(chosen[choice] === name));
  }
}

/** A table whose rows are reused. Columns: {name, word?, fill(cell, row)}; one heads the row. */
class Table {
  constructor(parent, caption, columns) {
    this.columns = columns;
    this.box = make("div", "scroll");
    this.box.tabIndex = 0;
    mark(this.box, "role", "region");
    mark(this.box, "aria-label", caption);
    // Rows become cards on a phone; the roles keep it a table for a screen reader all the same.
    this.table = make("table", "data");
    mark(this.table, "role", "table");
    this.table.append(make("caption", "", caption));
    const head = this.table.createTHead();
    mark(head, "role", "rowgroup");
    const line = head.insertRow();
    mark(line, "role", "row");
    columns.forEach(({ name, word }, i) => {
      const cell = make("th", word || !i ? "word" : "", name);
      cell.scope = "col";
      mark(cell, "role", "columnheader");
      line.append(cell);
    });
    this.body = this.table.createTBody();
    mark(this.body, "role", "rowgroup");
    this.nothing = make("p", "none");
    this.box.append(this.table, this.nothing);
    parent.append(this.box);
  }

  show(rows, tall, nothing) {
    put(this.nothing, nothing);
    this.box.classList.toggle("tall", tall);
    this.table.hidden = !rows.length;
    this.nothing.hidden = rows.length > 0;
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    while (this.body.rows.length < rows.length) this.add();
    rows.forEach((row, i) => {
      const { cells } = this.body.rows[i];
      this.columns.forEach(({ fill }, j) => fill(cells[j], row));
    });
  }

  add() {
    const line = this.body.insertRow();
    mark(line, "role", "row");
    this.columns.forEach(({ name, word }, j) => {
      const cell = make(j ? "td" : "th", word ? "word" : "");
      if (!j) cell.scope = "row";
      mark(cell, "role", j ? "cell" : "rowheader");
      cell.dataset.label = name;
      line.append(cell);
    });
  }
}

const text = (name, of, word = false) => ({ name, word, fill: (cell, row) => put(cell, of(row)) });

const badge = (name, of) => ({
  name,
  word: true,
  fill(cell, row) {
    const { is, says, why } = of(row);
    if (!cell.firstElementChild) cell.append(make("span", "badge"));
    const shown = cell.firstElementChild;
    mark(shown, "data-is", is);
    put(shown, says);
    shown.title = why;
  },
});

const when = (name, of) => ({
  name,
  fill(cell, row) {
    const { at, shown } = of(row);
    put(cell, shown);
    const title = at === null || at === undefined ? "" : moment(at);
    if (cell.title !== title) cell.title = title;
  },
});

const WHY = {
  live: "taking part in the open round",
  late: "taking part, but has not come for the open round",
  new: "enrolled and not seen yet",
  left: "not taking part: it said goodbye or was not heard of",
  revoked: "its credential is revoked",
};

/** Late: behind by a whole round, or behind for longer than a round waits. */
function stateOf(agent, overview) {
  if (agent.revoked !== null) return "revoked";
  if (agent.last_seen === null) return "new";
  if (!agent.live) return "left";
  const behind = overview.round - (agent.episode ?? 0);
  return behind > 1 || (behind === 1 && overview.now - overview.opened > overview.deadline)
    ? "late"
    : "live";
}

let agentTable;
let roundTable;

const CHIPS = {
  all: ["All", () => true],
  live: ["Live", ({ state }) => state === "live"],
  late: ["Late", ({ state }) => state === "late"],
  new: ["Not seen yet", ({ state }) => state === "new"],
  left: ["Left", ({ state }) => state === "left"],
  revoked: ["Revoked", ({ state }) => state === "revoked"],
  refused: ["With refused uploads", ({ refused }) => refused > 0],
};

function showAgents(agents) {
  agentTable ??= new Table($("agents-list"), "Agents in the order of enrolment", [
    text("Agent", ({ name }) => name),
    badge("State", ({ state }) => ({
      is: state,
      says: state === "new" ? "not seen yet" : state,
      why: WHY[state],
    })),
    when("Last seen", ({ last_seen: at, since }) => ({
      at,
      shown: at === null ? "never" : ago(since),
    })),
    text("Episode", ({ episode }) => whole(episode)),
    text("Uploads", ({ uploads }) => whole(uploads)),
    {
      name: "Refused",
      fill(cell, { refused }) {
        put(cell, whole(refused));
        cell.classList.toggle("alarm", refused > 0);
      },
    },
    text("Slots", ({ slots }) => whole(slots)),
    text("Reward", ({ reward }) => decimal(reward)),
  ]);
  const words = {};
  for (const [name, [says, holds]] of Object.entries(CHIPS)) {
    const count = agents.filter(holds).length;
    words[name] =
      count || name === "all" || name === chosen.agents ? `${says} ${whole(count)}` : null;
  }
  showChips($("agents-chips"), "agents", words);
  $("agents-chips").hidden = !agents.length;
  const found = agents.filter(CHIPS[chosen.agents][1]);
  const shown = chosen.allAgents ? found : found.slice(0, most("agents"));
  agentTable.show(
    shown,
    shown.length > most("agents"),
    agents.length ? "No agent is in this state." : "No agent is enrolled yet.",
  );
  offerMore(
    $("agents-more"),
    found.length,
    most("agents"),
    chosen.allAgents,
    (n, all) => `Show ${all ? "all" : "only"} ${n} agents`,
  );
}

function showRounds(overview) {
  const brought = new Map(overview.rewards.map((row) => [row.round, row]));
  const rows = overview.rounds.map((row) => ({
    ...row,
    ...brought.get(row.round),
    now: overview.now,
  }));
  roundTable ??= new Table($("rounds-list"), "Rounds, newest first", [
    text("Round", ({ round }) => whole(round)),
    badge("State", ({ closed, reason }) => {
      if (closed === null) return { is: "open", says: "open", why: "agents are playing it" };
      if (reason === "deadline")
        return {
          is: "deadline",
          says: "deadline",
          why: "closed at its deadline, before all had reported",
        };
      return { is: "all", says: "all reported", why: "closed when all who take part had reported" };
    }),
    when("Opened", ({ opened: at, now }) => ({ at, shown: ago(now - at) })),
    text("Took", ({ opened, closed }) => (closed === null ? MISSING : duration(closed - opened))),
    text("Reports", ({ reports }) => whole(reports)),
    text("Longest episode", ({ limit }) => whole(limit)),
    text("Slots", ({ slots }) => whole(slots)),
    text("Reward", ({ reward }) => decimal(reward)),
  ]);
  const shown = chosen.allRounds ? rows : rows.slice(0, most("rounds"));
  roundTable.show(shown, shown.length > most("rounds"), "No round has been opened yet.");
  offerMore(
    $("rounds-more"),
    rows.length,
    most("rounds"),
    chosen.allRounds,
    (n) => `Show the last ${n} rounds`,
  );
}

// ---- The whole ---------------------------------------------------------------------------------

function showHead(overview, agents, rounds) {
  put($("name"), overview.federation);
  put(
    $("policy"),
    `${overview.policy}, ${counted(overview.plays, "play")} ` +
      `of ${counted(overview.arms.length, "arm")} a slot`,
  );
  document.title = `${overview.federation}, round ${overview.round}`;
  put($("tile-round"), whole(overview.round));
  put(
    $("tile-round-aside"),
    `open for ${seconds(overview.now - overview.opened)}, ` +
      `at most ${counted(overview.limit, "slot")}`,
  );
  const latest = rounds[rounds.length - 1];
  put($("tile-reward"), latest ? decimal(latest.mean) : MISSING);
  const share =
    latest && overview.reference > 0
      ? `${percent(latest.mean / overview.reference)} of known dynamics`
      : "";
  put(
    $("tile-reward-aside"),
    latest ? share || `last ${WINDOW} rounds` : "no round has closed yet",
  );
  const enrolled = agents.filter(({ state }) => state !== "revoked");
  const late = agents.filter(({ state }) => state === "late").length;
  put(
    $("tile-agents"),
    whole(agents.filter(({ state }) => state === "live" || state === "late").length),
  );
  put(
    $("tile-agents-aside"),
    `of ${whole(enrolled.length)} enrolled${late ? `, ${whole(late)} late` : ""}`,
  );
  put($("tile-uploads"), brief(overview.uploads));
  put(
    $("tile-uploads-aside"),
    `${whole(agents.reduce((sum, { refused }) => sum + refused, 0))} refused`,
  );
  put($("tile-slots"), brief(overview.slots));
}

let latestOverview;

function show(overview) {
  const agents = overview.agents
    .filter(({ role }) => role === "agent")
    .map((agent) => ({
      ...agent,
      state: stateOf(agent, overview),
      since: overview.now - agent.last_seen,
    }));
  const rounds = course(overview);
  showHead(overview, agents, rounds);
  const drawn = JSON.stringify([overview.rewards, overview.reference, chosen.time]);
  if (drawn !== show.drawn || !rounds.length) showReward(overview, rounds);
  show.drawn = drawn;
  showChips($("reward-time"), "time", { slots: "By slots", round: "By round" });
  showChips(
    $("arms-order"),
    "order",
    Object.fromEntries(Object.entries(ORDERS).map(([name, [words]]) => [name, words])),
  );
  showArms(overview);
  showAgents(agents);
  showRounds(overview);
  latestOverview = overview;
}

/** Draw the last answer once more, after something was chosen on the page. */
const again = () => latestOverview && show(latestOverview);

for (const [id, what] of Object.entries({
  "arms-more": "allArms",
  "agents-more": "allAgents",
  "rounds-more": "allRounds",
})) {
  $(id).addEventListener("click", () => {
    chosen[what] = !chosen[what];
    again();
  });
}
phone.addEventListener("change", again);

// ---- The connection ----------------------------------------------------------------------------

let timer;
let asking;
let failures = 0;
let answered; // when the last answer came

function linked(state, word) {
  mark($("link"), "data-state", state);
  put($("link-word"), word);
  put($("link-time"), answered && state === "live" ? clock(answered) : "");
  if (state !== "connecting") mark($("main"), "data-state", answered ? state : "loading");
  $("lost").hidden = state !== "lost";
}

/** Why there was no good answer, in words for the operator. */
function reason(error, timedOut) {
  if (timedOut) return `no answer within ${PATIENCE / 1000} s`;
  if (error instanceof TypeError && error.message.includes("fetch"))
    return "the server cannot be reached";
  return error.message;
}

function understood(overview) {
  try {
    show(overview);
  } catch (error) {
    console.error(error);
    throw new Error("the server's answer is not what this page understands");
  }
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  const question = (asking = new AbortController());
  let timedOut = false;
  const limit = setTimeout(() => ((timedOut = true), question.abort()), PATIENCE);
  try {
    const answer = await fetch("v1/overview", { cache: "no-store", signal: question.signal });
    if (answer.status === 401)
      throw new Error("the server wants an admin credential: reload the page to give one");
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const overview = await answer.json().catch((error) => {
      throw question.signal.aborted ? error : new Error("the server's answer is no JSON");
    });
    understood(overview);
    failures = 0;
    answered = new Date();
    linked("live", "Live");
  } catch (error) {
    if (question !== asking) return; // a newer question took its place, or the tab went out of view
    failures++;
    linked("lost", "Connection lost, retrying");
    put(
      $("lost"),
      (answered ? `What is shown is from ${clock(answered)}: ` : "Nothing to show yet: ") +
        `${reason(error, timedOut)}.`,
    );
    document.title = `Connection lost: ${$("name").textContent}`;
  } finally {
    clearTimeout(limit);
  }
  if (question === asking)
    timer = setTimeout(
      ask,
      failures ? Math.min(EVERY * 2 ** (failures - 1), LONGEST_PAUSE) : EVERY,
    );
}

/** While nobody looks at the tab, nothing is asked. */
function look() {
  if (!document.hidden) return void ask();
  clearTimeout(timer);
  const question = asking;
  asking = undefined;
  question?.abort();
}

document.addEventListener("visibilitychange", look);
window.addEventListener("online", look);
look();
