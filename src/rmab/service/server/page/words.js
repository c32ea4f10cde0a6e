// Numbers, times, the marks of an axis and the states of agents in words.
//
// Numbers have three places and no 0 before the point; what is not known is a dash. Nothing here
// touches the document.

export const MISSING = "–";

/** A number from the wire, where "inf" and "-inf" stand for what JSON has no number for. */
export const number = (value) =>
  value === "inf"
    ? Infinity
    : value === "-inf"
      ? -Infinity
      : typeof value === "number"
        ? value
        : NaN;

/** .985, 1.000, −.012; more digits before the point leave fewer after it. */
export function decimal(value, places = 3) {
  const x = number(value);
  if (Number.isNaN(x)) return MISSING;
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const digits = Math.max(0, places - Math.max(0, Math.floor(Math.log10(Math.abs(x) || 1))));
  const shown = Math.abs(x).toFixed(digits);
  const sign = x < 0 && Number(shown) !== 0 ? "−" : "";
  return sign + (shown.startsWith("0.") ? shown.slice(1) : shown);
}

/** As short as it can be: 0, .4, 1.25. */
export const plain = (value) =>
  decimal(value)
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "") || "0";

export const whole = (value) => (Number.isFinite(number(value)) ? value.toLocaleString("en") : MISSING);

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** Whole numbers that fit where there is little room: 123,456, then 1.235M. */
export const brief = (value) => (value < 1e6 ? whole(value) : COMPACT.format(value));

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

export const counted = (n, one, more = `${one}s`) => `${whole(n)} ${n === 1 ? one : more}`;

export function duration(seconds) {
  if (!(seconds >= 0)) return MISSING;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** A duration without parts of a second. */
export const seconds = (span) => duration(Math.max(0, Math.floor(span))).replace(".0", "");

export const ago = (span) => (span < 1 ? "now" : `${seconds(span)} ago`);

export const clock = (date) => date.toLocaleTimeString("en-GB");

export const moment = (unix) =>
  new Date(1000 * unix).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Round numbers from low to high, about `count` of them, with the text of each. */
export function ticks(low, high, count) {
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

export const WHY = {
  live: "heard of lately",
  late: "heard of lately, but has not come for the open round",
  new: "enrolled and not seen yet",
  silent: "not heard of lately",
  revoked: "its credential is revoked",
  outlier: "what it counted is not what the others counted: the difference is not chance",
};

/** Above this an agent's counts are unlike the others' by more than chance. */
const OUTLIER = 6;

export const isOutlier = ({ outlier }) => outlier > OUTLIER;

/** Late: behind by a whole round, or behind for longer than a round waits. */
export function stateOf(agent, overview) {
  if (agent.revoked !== null) return "revoked";
  if (agent.last_seen === null && !agent.uploads) return "new";
  if (!agent.live) return "silent";
  const behind = overview.round - (agent.episode ?? 0);
  return behind > 1 || (behind === 1 && overview.now - overview.opened > overview.deadline)
    ? "late"
    : "live";
}
