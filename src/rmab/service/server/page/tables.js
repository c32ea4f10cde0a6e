// The agents and the rounds: tables whose rows are reused, so that readers keep their place.

import { $, chosen, make, mark, most, offerMore, put, showChips } from "./elements.js";
import {
  ago,
  counted,
  decimal,
  duration,
  isOutlier,
  MISSING,
  moment,
  plain,
  whole,
  WHY,
} from "./words.js";

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

let agentTable;
let roundTable;

const CHIPS = {
  all: ["All", () => true],
  live: ["Live", ({ state }) => state === "live"],
  late: ["Late", ({ state }) => state === "late"],
  new: ["Not seen yet", ({ state }) => state === "new"],
  silent: ["Silent", ({ state }) => state === "silent"],
  revoked: ["Revoked", ({ state }) => state === "revoked"],
  refused: ["With refused uploads", ({ refused }) => refused > 0],
  outliers: ["Unlike the others", isOutlier],
};

/** What is wrong with the settings, the clock or the agents, one sentence or two each. */
export function showWarnings({ warnings = [] }) {
  const list = $("warnings");
  list.hidden = !warnings.length;
  while (list.children.length > warnings.length) list.lastElementChild.remove();
  while (list.children.length < warnings.length) list.append(make("li", "note alarm"));
  warnings.forEach((text, i) => put(list.children[i], text));
}

/** That agents see the same, and what to set. */
export function showTogether({ correlation }) {
  const note = $("agents-together");
  note.hidden = !correlation?.correlated;
  if (note.hidden) return;
  const advice = correlation.advised
    ? ' With draws = "per-agent" they try different arms, and learn more.'
    : "";
  put(note, `Agents are correlated (${decimal(correlation.value, 2)}): they see the same.${advice}`);
}

/** Where [privacy] is asked for: what was opened or released, what waits, and how the helper is. */
export function showSums({ privacy, now }) {
  const note = $("agents-sums");
  note.hidden = !privacy;
  if (note.hidden) return;
  const noise = privacy.mode === "noise"; // that the server draws: it has no helper
  const [done, one] = noise ? ["released", "release"] : ["opened", "opening"];
  const several = privacy.groups.length > 1;
  const groups = privacy.groups.map(({ group, opening, at, agents, slots, result, ...rest }) => {
    const name = noise ? "The sum" : several ? `Group ${whole(group)}` : "The group";
    const left = rest.releases_left;
    const more = typeof left === "number" ? ` ${counted(left, "release")} left.` : "";
    if (opening === null) return `${name} was not ${done} yet.${more}`;
    const dropped = result === "impossible" ? " It was impossible, and dropped." : "";
    return (
      `${name} was last ${done} ${ago(now - at)}: ${one} ${whole(opening)}, ` +
      `${counted(agents, "agent")}, ${counted(slots, "slot")}.${dropped}${more}`
    );
  });
  const waits = privacy.waiting_slots === 1 ? "waits" : "wait";
  const waiting =
    `${counted(privacy.waiting_slots, "slot")} ${waits} for ${noise ? "a" : "an"} ${one}.`;
  const budget =
    typeof privacy.epsilon === "number"
      ? `Sums have noise, ε = ${plain(privacy.epsilon)}, δ = ${privacy.delta.toExponential()} ` +
        "for one slot of a log, its plays given" +
        (noise
          ? ", drawn by the server: it is told each agent's counts, agents and readers are not. "
          : ". ")
      : "";
  const { up, trouble } = privacy.helper ?? { up: true };
  const helper = up ? "The helper is up." : `The helper is down: ${trouble ?? "not asked yet"}.`;
  const secure =
    `Secure sums: the server learns sums of at least ${whole(privacy.least)} agents and what no ` +
    "single one counted; rewards, outliers and correlation of agents are not known. ";
  note.classList.toggle("alarm", !up);
  put(
    note,
    `${noise ? "" : secure}${budget}${groups.join(" ")} ${waiting}${noise ? "" : ` ${helper}`}`,
  );
}

export function showAgents(agents) {
  agentTable ??= new Table($("agents-list"), "Agents in the order of enrolment", [
    text("Agent", ({ name }) => name),
    badge("State", ({ state }) => ({
      is: state,
      says: state === "new" ? "not seen yet" : state,
      why: WHY[state],
    })),
    when("Last seen", ({ last_seen: at, since, uploads }) => ({
      at,
      shown: at !== null ? ago(since) : uploads ? MISSING : "never",
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
    {
      name: "Outlier",
      fill(cell, agent) {
        put(cell, decimal(agent.outlier, 1));
        cell.classList.toggle("alarm", isOutlier(agent));
        cell.title = isOutlier(agent) ? WHY.outlier : "";
      },
    },
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

export function showRounds(overview) {
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
