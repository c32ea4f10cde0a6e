"""Texts at the end of the help: examples, keys of files, and policies."""

from __future__ import annotations

import textwrap

__all__ = ["closing"]

_WIDTH = 90

_STUDY = """\
a study file:
  agents = 4
  plays = 2
  horizon = 1000
  trials = 10000
  policies = ["fedtswi", "fedtswi-gap", "whittle"]
  [[arm]]
  p01 = 0.20
  p11 = 0.80
  reward = 0.4
  [[arm]]
  passive = [[0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.0, 0.3, 0.7]]
  active = [[0.7, 0.3, 0.0], [0.1, 0.6, 0.3], [0.0, 0.1, 0.9]]
  reward = [0.0, 0.5, 1.0]
  observed = "when_played"
  (one [[arm]] table for each arm: a two-state channel by p01, p11 and reward,
  any other by its transition matrices; active is as passive if left out, rewards
  are reward or reward_active, when played, and reward_passive; observed is
  "when_played" or "always")
"""

_SWEEP = """
a study at several points, all values with all others:
  [sweep]
  agents = [1, 2, 4]
  plays = [1, 2]
  policies.fedtswi-gap.gaps = [8, 32]
  (any key above but policies and options; options of the study's policies;
  arm.1.p11 and the like of channels; privacy.epsilon; copies = [1, 2, 4] repeats the arms; with
  together = true the lists go side by side; labels = ["few", "many"] names the points)
"""

_SERVER_EXITS = """
exit codes: 0 done; 1 what may pass (a server or database that is not up, a port in
use, a name that does not resolve, a full disk); 2 what will never work (bad input, a
refused credential, another federation's database); 130 interrupted"""

_HELPER_EXITS = """
exit codes: 0 done; 1 what may pass (a database that is not up, a port in use, a full
disk); 2 what will never work (bad input, another federation's database); 130 interrupted"""

_TEXTS = {
    "": f"""\
  rmab reproduce fig10 --trials 1000 --out results

{_STUDY}
rmab run --help lists all keys of a study, the policies and their options
""",
    "run": f"""\
  rmab run study.toml --trials 1000 --out results
  rmab run --resume results      after Ctrl-C, kill or a full disk: the same numbers
  rmab run study.toml --json

{_STUDY}""",
    "value": """\
  rmab value study.toml --json

A value that is out of reach is null, and a line on standard error says why. The upper
bound then stands for the optimum. A policy is simulated instead: with --json,
"simulated" has its mean and standard error (se).""",
    "index": """\
  rmab index study.toml --max-age 5
  rmab index catalogue:machine --discount 0.9

with --json, {"arms": [...]} has for each arm
  indexable   true, false, or null where that is undecided
  index       one number for each state of a fully observed arm; for one observed when
              played a list for each state last seen, by age from 1
  never_seen  of an arm observed when played: before the first observation
  reason      why indexable is not true
  witness     where it is false: passive is better at the subsidy low, active at high,
              in this state (or last_seen and age; null and 0: never seen)
an infinite index is the string "inf" or "-inf", one that is not known null
""",
    "reproduce": """\
  rmab reproduce
  rmab reproduce fig06 fig10 --trials 500 --out quick
  rmab reproduce regret-horizon regret-agents regret-arms
  rmab reproduce privacy privacy-arms   noise, liars and strangers; by name alone""",
    "arena": """\
  rmab arena                                   all policies on all problems
  rmab arena --list
  rmab arena jt4 c1 --policies fedtswi,ucb --trials 32 --out quick
  rmab arena paper-k1-m1 --policy mine:policy
  rmab arena --out results --page              the page again, from results/arena.json
  rmab arena --out results --compare theirs.json

a policy of one's own, in mine.py (docs/arena.md has a whole one):
  policy = rmab.Policy("mine", planner=..., learner=...)     or a function that makes one

problems are those of --list, or files: a study and `reason = "one line"`
policies are those of rmab run --help; with options: ucw-value@scale=0.1; whittle, lookahead and
random, which know the dynamics or nothing, always play, but for a lookahead that a problem leaves
out for the time it takes. All that a problem's arms allow play it

columns, and the keys of each policy in arena.json
  mean, final      average reward per agent and slot, over all of them and the last tenth
  regret           against whittle with known dynamics, with a 95 % band
  share            of the distance from random to the best that knows the dynamics
  first            the learner with the largest mean, and those tied with it
  rank, tied       among those that learn, by paired differences: within four standard errors two
                   are tied; a rank is one more than the number of those that are better
  stuck            trials that failed: whose last tenth is behind whittle's by half the distance
                   from random to the best known
  seconds          of a trial on one core, compiled

written to DIR: arena.html, arena.json, arena.csv, regret.png and .svg, problems/NAME.json.
Ctrl-C keeps the problems that are done, and --resume goes on with the others.
With --compare the run that DIR has is laid beside OTHER.json, an arena.json from elsewhere; where
DIR has none, or problems are named, they are run first: without names those of OTHER.json
""",
    "trace": """\
  rmab trace raw.csv --good "<= -95" --slot 0.1 --out trace.npz
  rmab trace sweeps.csv --bands 2.401e9:2.423e9,2.426e9:2.448e9 --good auto --out trace.npz
  rmab trace raw.mat --variable rssi --levels "-95,-80" --out trace.npz
  rmab trace plc.csv --decimal , --dates "%d.%m.%Y %H:%M:%S" --missing NA,-9999 --good "<= 20"
  rmab trace trace.npz           says what is in it

what is read, by the end of its name:
  .csv, .csv.gz  long: columns time, arm, value, and agent if there are several
                 wide: time, and one column for each arm
                 sweeps of rtl_power and hackrf_sweep, with --bands
  .parquet       as a CSV file, where pandas can read it
  .npz, .npy     (slots, arms) or (agents, slots, arms)
  .mat           the same, up to version 7
  times are seconds, or dates by ISO 8601; without --slot a slot is the median step between times
  empty cells, NaN and Inf are missing, and what --missing names; without --good and --levels
  values are 1, good, 0, bad, or -1, missing

the .npz file that is written has
  state          (agents, slots, arms): 1 good, 0 bad, -1 missing
  seg            (slots,): segments
  level          of --levels, as state in several states
  meta           JSON: slot_s, agents, channels, source, states, level_states
""",
    "fit": """\
  rmab fit trace.npz --out fitted
  rmab fit trace.npz --json
  rmab fit trace.npz --good "== 0" --out fitted --study study.toml

with --json, and in fit.json
  series, tested  arms as agents measured them; those with 100 pairs and 8 changes or more
  bits, share     by model iid, order1, order2, ages, regimes, flicker: bits a slot, and what it
                  predicts beyond iid as a share of what the best does
  regimes         median: pieces of a series; changed: share of series with more than one
  flicker         good_when_bad, bad_when_good: fitted errors, medians
  agents          correlation, effective: how many they are worth, pooling_bits_lost: by one law
  twin            by policy: average reward on the trace; on twins the mean, low and high
  verdicts        question, size, answer ("fits" or what is wrong), so: what to set
  arms            agent, arm, p01, p11, good, pairs
what is not known is null
""",
    "backtest": """\
  rmab backtest trace.npz --plays 1 --policies stay,fedtswi-gap,whittle --out tested
  rmab backtest trace.npz --same 0 --agents 8 --policies stay,fedtswi-gap
  rmab backtest trace.npz --levels --reward 0,0.5,1 --policies stay,myopic,genie

policies are those of rmab run --help but optimal, and genie, which sees the states
  whittle, myopic, lookahead, fixed, fixed-best  know the trace: they are fitted to all of it
  whittle@pooled   fitted to all agents together
  whittle@segment  fitted for each segment by itself

rules
  agent m plays on recording m; an arm can be played where it was measured; with fewer than K such
  arms all are played, and with none the slot is skipped
  at the first slot of a segment every arm is never observed; what was learnt stays
  average reward: all rewards / all (agent, slot) with an arm measured

with --json, and in backtest.json
  trace     agents, slots, arms, agent_slots, segments, missing, good
  plays, runs, seed
  policies  by name: mean, se over runs, by_agent, by_block, learns, fitted, over_stay and
            over_fixed (fixed-best): difference, low and high of a 95 % interval, null where
            there is none; blocks, over how many; undecided, why there is none
""",
    "new": """\
  rmab new federation spectrum
""",
    "new federation": """\
  rmab new federation spectrum         writes spectrum.toml
  rmab server spectrum.toml            serves it as it is

the file has four channels as an example, and says what each key is for: change the
arms, plays and slot_seconds to yours. A file that is there is never overwritten.

exit codes: 0 done; 1 what may pass (a full disk); 2 what will never work (a bad name, a
file that is there)""",
    "server": f"""\
  rmab server spectrum.toml
  rmab server spectrum.toml --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  rmab server spectrum.toml --trusted-proxy 127.0.0.1

SIGTERM and SIGINT end it; SIGHUP has it read its certificate and the federation's
schedule, deadline, live_seconds and reference again

a federation file (rmab new federation spectrum writes one with comments):
  name = "spectrum"
  plays = 2
  policy = "fedtswi-gap"
  schedule = "linear"
  deadline = 30
  [[arm]]
  reward = 0.4
  [[arm]]
  states = 3
  reward = [0.0, 0.5, 1.0]
  (one [[arm]] table for each arm; the dynamics are learnt)

further keys of an arm: observed = "always" (default "when_played"), action_dependent = true (it
  moves in another way when played), reward_passive = [...] (of a slot without a play)

further keys, above the arms: slot_seconds (the shortest slot; no agent can claim more slots than
  time allows), cap (no owner weighs more than so many times the median one), seed, draws
  ("shared", "per-agent", or "own": by an agent's own observations first), doubt (of "own": the
  chance that an agent's arm is unlike the others'; default 0.1), reference (a reward to compare
  with on the page), live_seconds (since an agent was heard of, up to which it is shown as live;
  default: two deadlines), horizon (fed1-ucb), [options] of the policy, [weights] of owners by
  name, [privacy] (helper: the server learns sums alone, which a helper opens, see
  rmab helper --help; epsilon, delta: sums have noise, made for one slot of an agent's log, its
  plays given: docs/privacy.md)
{_SERVER_EXITS}""",
    "enroll": f"""\
  rmab enroll spectrum.toml radio-1 > radio-1.token
  rmab enroll spectrum.toml radio-7 --owner acme > radio-7.token
  rmab enroll spectrum.toml boss --admin > admin.token
  rmab enroll spectrum.toml prometheus --viewer > viewer.token
  rmab enroll https://server:8443 radio-2 --token-file admin.token --ca ca.pem
{_SERVER_EXITS}""",
    "revoke": f"""\
  rmab revoke spectrum.toml radio-1
  rmab revoke spectrum.toml radio-1 --forget
{_SERVER_EXITS}""",
    "agents": f"""\
  rmab agents spectrum.toml
  rmab agents spectrum.toml --forget radio-1
  rmab agents https://server:8443 --token-file admin.token --json

live are agents that were heard of within two deadlines, or within live_seconds
{_SERVER_EXITS}""",
    "backup": f"""\
  rmab backup spectrum.toml spectrum-backup.db

the file is replaced if it is there, and only its owner can read it; of a PostgreSQL
database pg_dump makes one
{_SERVER_EXITS}""",
    "demo": """\
  rmab demo
  rmab demo --slots 2000 --no-browser""",
    "helper": f"""\
  rmab helper spectrum.toml --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

the federation's file has a table [privacy] with the helper's address:
  [privacy]
  helper = "https://helper.example:9443"
  least = 3          (agents in a sum that is opened, 3 or more)
  groups = 1         (sums are opened by group)
  epsilon = 1.0      (sums have noise, which the helper draws; default: none)
  delta = 1e-6       (of one slot of an agent's log, among logs with the same plays)
  survey = 16        (counts slots of a schedule only: hidden however it plays)

whoever runs the helper must be somebody else than whoever runs the server. Its database
must never be restored from a backup: one that is lost is begun anew, with new keys
{_HELPER_EXITS}""",
    "helper-enroll": f"""\
  rmab helper-enroll spectrum.toml radio-1 > radio-1.key
  rmab helper-enroll spectrum.toml radio-2 --group 2 > radio-2.key
  rmab helper-enroll spectrum.toml --server > helper.token
{_HELPER_EXITS}""",
    "helper-revoke": f"""\
  rmab helper-revoke spectrum.toml radio-1
{_HELPER_EXITS}""",
    "helper-agents": f"""\
  rmab helper-agents spectrum.toml
{_HELPER_EXITS}""",
    "agent": """\
  rmab agent https://server:8443 --token-file my.token --ca ca.pem --env radio:Radio
  rmab agent http://127.0.0.1:8080 --token-file my.token --simulate study.toml --slots 1000

an environment, in radio.py:
  class Radio:
      def sense(self, arms):            # arms to play in this slot, from 0
          return [self.busy(a) for a in arms]    # the state of each, from 0
      def look(self, arms):             # only for arms that are always observed:
          return [...]                  # the state of each, before any is played

after its slots, or when it is interrupted, it sends what is unsent and prints slots,
mean reward per slot, acknowledged uploads and the round; what cannot be sent is kept in
its file and sent at the next start. A bad reading (NaN, a state that the arm does not
have, too few or too many, an error of the device) is skipped, counted and logged: its
slot passes without an observation of that arm, or of any. An exception that is a
bug of the program (NameError, TypeError, ...) ends the agent with 2.

exit codes: 0 done; 1 what may pass (the server was not reached, a device is not there
or gives bad readings, a disk is full); 2 what will never work (bad input, a refused
credential, another agent's file, a bug in sense); 130 interrupted""",
}


def closing(command: str = "") -> str:
    """Return the end of the help of a command such as "new federation", "": of the program."""
    text = f"example:\n{_TEXTS[command]}"
    return f"{text}{_study_keys()}" if command == "run" else text


def _study_keys() -> str:
    """Return the keys of a study, the policies and their options, from their definitions."""
    from rmab.studies.study import KEYS

    lines = ["", "keys, above the arms:"]
    for name, key in KEYS.items():
        choices = " or ".join(f'"{choice}"' for choice in key.choices)
        lines += _item(name, f"{key.about}{': ' if choices else ''}{choices}")
    return "\n".join([*lines, _SWEEP, *_policies(), ""])


def _policies() -> list[str]:
    """Return the policies by group with the names of their options, then the options."""
    from rmab.policies.entry import GROUPS
    from rmab.policies.registry import POLICIES, described_options

    lines = []
    for group, title in GROUPS.items():
        lines.append(f"policies: {title}")
        for name, entry in POLICIES.items():
            if entry.group == group:
                taken = f"; options {', '.join(entry.options)}" if entry.options else ""
                lines += _item(name, entry.summary + taken)
    lines += ["", "options of a policy, as in options.fedtswi-gap.gaps = 64:"]
    for name, option in described_options().items():
        lines += _item(name, f"{option.meaning}; default: {option.default}")
    return lines


def _item(name: str, about: str) -> list[str]:
    """Return a name and its explanation in a column beside it."""
    text = f"  {name:<20}  {about}"
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 24, break_on_hyphens=False)
