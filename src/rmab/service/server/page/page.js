// The page of a federation: asks /v1/overview every second and draws the answer.
//
// words.js has numbers and times as text, elements.js the document and what was chosen on it,
// charts.js lines over an axis; reward.js, arms.js and tables.js draw the sections with them.
//
// Rules. Text from the server enters the document through textContent alone. Nothing comes from
// another origin. What did not change is not touched, so that focus, selection and scrolling stay.
// Times are told by the server's clock (`now` in its answer), not by this machine's.

import { ORDERS, showArms } from "./arms.js";
import { $, chosen, mark, onChoice, put, showChips } from "./elements.js";
import { course, hidesReward, showReward, WINDOW } from "./reward.js";
import { showAgents, showRounds, showSums, showTogether, showWarnings } from "./tables.js";
import {
  brief,
  clock,
  counted,
  decimal,
  MISSING,
  percent,
  seconds,
  stateOf,
  whole,
} from "./words.js";

const EVERY = 1000; // ms from one answer to the next question
const PATIENCE = 5000; // ms after which a question counts as unanswered
const LONGEST_PAUSE = 5000; // ms between tries while the connection is lost

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
    overview.opened === null
      ? "the first is being planned"
      : `open for ${seconds(overview.now - overview.opened)}, ` +
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
    latest
      ? share || `last ${WINDOW} rounds`
      : hidesReward(overview)
        ? "not released"
        : "no round has closed yet",
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
  showWarnings(overview);
  showTogether(overview);
  showSums(overview);
  showAgents(agents);
  showRounds(overview);
  latestOverview = overview;
}

onChoice(() => latestOverview && show(latestOverview));

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
      throw new Error("the server wants a viewer's credential: reload the page to give one");
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
