// The arms: a card for each, with its dynamics, its index by age and its share of the plays.
//
// All arms have one scale of indices. A card is drawn anew only when what it shows has changed.

import { Chart, extent } from "./charts.js";
import { $, chosen, draw, key, make, mark, most, offerMore, put } from "./elements.js";
import { counted, decimal, MISSING, number, percent, plain } from "./words.js";

const COLOURS = 6; // lines of later states repeat the colours, dashed

const lineOf = (state) => `state s${state % COLOURS}${state >= COLOURS ? " later" : ""}`;

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
  const part = (of) =>
    of?.transitions
      ? [heatTable(n, of.transitions)]
      : [rangeBar("p01", of?.p01), rangeBar("p11", of?.p11), rangeScale()];
  if (!estimate?.passive) return part(estimate);
  const words = (text) => make("p", "fine", text);
  return [words("after a play"), ...part(estimate), words("left alone"), ...part(estimate.passive)];
}

/** What an arm pays and how it differs from most, in words. */
function kind(arm) {
  const list = (rewards) => rewards.map(plain).join(", ");
  const two = arm.states === 2 && arm.reward[0] === 0;
  const words = [two ? `reward ${plain(arm.reward[1])}` : `rewards ${list(arm.reward)}`];
  if (arm.reward_passive) words.push(`left alone ${list(arm.reward_passive)}`);
  if (arm.observed === "always") words.push("always observed");
  return words.join("; ");
}

function sharePart(arm, overview) {
  if (arm.share === null) return [make("p", "part", "Share of plays: not released")];
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
  const always = arm.observed === "always"; // its index is of its state alone, whatever the age
  const level = number(never);
  const shown = lines.map((line) =>
    always ? Array(Math.max(2, last)).fill(number(line[0])) : line.slice(0, last).map(number),
  );
  const seen = always ? "In state" : "Last seen in state";
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
            `${seen} ${s}: ${decimal(line[0])} to ${decimal(line[line.length - 1])}. `,
        )
        .join("") +
      (always ? "" : `Never seen: ${decimal(never)}.`),
    lines: shown.map((line, s) => ({ kind: lineOf(s), points: line.map((y, i) => [i + 1, y]) })),
    levels: Number.isFinite(level) ? [{ y: level, kind: "level" }] : [],
    stops: Array.from({ length: Math.max(0, ...shown.map((line) => line.length)) }, (_, i) => ({
      x: i + 1,
      title: `Age ${i + 1}`,
      values: [
        ...shown.map((line, s) => ({
          kind: lineOf(s),
          name: `${always ? "in" : "seen"} ${s}`,
          y: line[i],
          text: decimal(line[i]),
        })),
        ...(always ? [] : [{ kind: "level", name: "never seen", y: NaN, text: decimal(never) }]),
      ],
    })),
  });
}

const cards = [];

export const ORDERS = {
  number: ["By number", () => 0],
  played: ["Most played", ({ share }) => -(number(share) || 0)],
  unsure: ["Least certain", ({ estimate }) => -widest(estimate)],
};

/** The widest interval of an arm's estimate; 1 where there is none. */
function widest(estimate) {
  const found = [estimate, estimate?.passive]
    .flatMap((of) => of?.transitions?.flat() ?? [of?.p01, of?.p11])
    .filter(estimated);
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

export function showArms(overview) {
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
  put(card.title, `Arm ${i + 1}`);
  put(card.reward, kind(arm));
  card.estimate.replaceChildren(...dynamics(i + 1, arm.estimate));
  card.chartBox.hidden = !arm.index;
  card.noIndex.hidden = Boolean(arm.index);
  if (arm.index) showIndex(card, i + 1, arm, scale, last);
  card.share.replaceChildren(...sharePart(arm, overview));
}
