// Reward over time, and what stands in its place before the first round has closed.

import { Chart, extent } from "./charts.js";
import { $, chosen, put } from "./elements.js";
import { counted, decimal, whole } from "./words.js";

export const WINDOW = 10; // rounds in the running mean of the reward

/** Rounds with the agent slots up to their end and the mean of the last WINDOW rounds by slots. */
export function course(overview) {
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

/** Whether sums have noise, so that no reward is ever told. */
export const hidesReward = ({ privacy }) => typeof privacy?.epsilon === "number";

let rewardChart;

export function showReward(overview, rounds) {
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
  const hidden = hidesReward(overview);
  put(
    $("empty-title"),
    overview.uploads > 0
      ? `${counted(overview.uploads, "upload")}, ` +
          (hidden ? "no reward is released" : "no round closed yet")
      : "No uploads yet",
  );
  put(
    $("empty-agents"),
    live.length
      ? `${counted(live.length, "agent")} at work in round ${whole(overview.round)}; ` +
          (hidden
            ? "counts are released with noise, and visits and rewards are not."
            : "its reward shows when it closes.")
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
