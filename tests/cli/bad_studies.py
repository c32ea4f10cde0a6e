"""Study files that break a rule, with words that the message must have."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.commands import OTHER_ARM, Changes, toml

HUGE = "9" * 400  # more than a float can hold
VAST = "0x" + "F" * 5000  # more digits than Python prints
NOT_NUMBERS = ["nan", "inf", "-inf", "+nan", '"x"', "true", "[0.5]", "{}", "1979-05-27", HUGE, VAST]
NOT_WHOLE = ["1.5", "2.0", '"10"', "true", "nan", "inf", "[1]", "{}", "-1", VAST]


def _shown(value: str) -> str:
    """How a message shows a TOML literal, as far as that is simple."""
    simple = {"true": "True", "+nan": "nan", '"x"': "'x'", '"10"': "'10'"}
    plain = re.fullmatch(r"-?(\d+(\.\d+)?|nan|inf)", value) and len(value) < 40
    return simple.get(value, value if plain else "")


def bad_general_arms(bad: Callable[..., Any]) -> Iterator[Any]:
    """Arms of matrices that break a rule: the second of the study, so the message says arm 2."""

    def general(changes: Changes, *words: str) -> Any:
        text = toml(general=changes)
        name = ", ".join(f"{key} = {value}"[:40] for key, value in changes.items())
        return bad(name, text, "arm 2: ", *words)

    for key in ("passive", "active"):

        def rows(value: str, *words: str, key: str = key) -> Any:
            return general({key: value}, key, *words)

        yield rows("[[0.9, 0.1], [0.2, 0.7]]", "row 1 must sum to 1, got 0.9", "[0.2, 0.7]")
        yield rows("[[0.9, 0.2], [0.2, 0.8]]", "row 0 must sum to 1, got 1.1", "[0.9, 0.2]")
        yield rows("[[0.9, 0.1], [0.0, 0.0]]", "row 1 must sum to 1, got 0")
        yield rows("[[0.9, 0.1], [-0.2, 1.2]]", "row 1: column 0 must be a probability, got -0.2")
        yield rows("[[1.5, -0.5], [0, 1]]", "row 0: column 1 must be a probability, got -0.5")
        for value in NOT_NUMBERS:
            words = "row 1: column 0 must be a finite number", _shown(value)
            yield rows(f"[[0.9, 0.1], [{value}, 0.8]]", *words)
        yield rows('[["0.5", "0.5"], [0, 1]]', "row 0: column 0", "finite number, got '0.5'")
        yield rows("[[0.9, 0.1], [1.0]]", "row 1 must have 2 numbers", "1 numbers")
        yield rows("[[0.9, 0.1], [0.2, 0.8, 0.0]]", "row 1 must have 2 numbers", "3 numbers")
        yield rows("[[0.9, 0.1], []]", "row 1 must have 2 numbers", "0 numbers")
        yield rows("[[], []]", "row 0 must have 2 numbers", "0 numbers")
        yield rows("[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]", "row 0 must have 2 numbers", "3 numbers")
        yield rows("[[1.0]]", "at least 2 rows", "got 1")
        yield rows("[]", "at least 2 rows", "got 0")
        yield rows("[0.5, 0.5]", "row 0 must be a list of numbers, got 0.5")
        yield rows("[[0.9, 0.1], 3]", "row 1 must be a list of numbers, got 3")
        yield rows('"rows"', "must be a list of rows of numbers, got 'rows'")
        yield rows("{}", "must be a list of rows of numbers, got {}")
        yield rows("0.5", "must be a list of rows of numbers, got 0.5")
        yield rows(f"[[0.9, 0.1], [{'[' * 100}{']' * 100}, 1]]", "row 1: column 0", "[[[[")
    eye = [[float(i == j) for j in range(3)] for i in range(3)]
    yield general({"active": str(eye)}, "active must have 2 rows", "got 3")
    yield general({"passive": str(eye)}, "active must have 3 rows", "got 2")
    large = [[float(i == j) for j in range(65)] for i in range(65)]
    text = toml(general={"passive": str(large), "active": None, "reward": str([1] * 65)})
    yield bad("65 states", text, "arm 2 must have at most 64 states", "got 65")

    for key in ("reward", "reward_active", "reward_passive"):

        def pays(value: str, *words: str, key: str = key) -> Any:
            left_out = {} if key == "reward" else {"reward": None}
            return general({**left_out, key: value}, key, *words)

        yield pays("[0.0, 1.0, 2.0]", "2 numbers, one for each state, got 3 numbers")
        yield pays("[0.0]", "2 numbers, one for each state, got 1 numbers")
        yield pays("[]", "2 numbers, one for each state, got 0 numbers")
        yield pays("1.0", "must be a list of numbers, got 1.0")
        yield pays('"x"', "must be a list of numbers, got 'x'")
        yield pays("[[0.0, 1.0]]", "state 0 must be a finite number, got [0.0, 1.0]")
        for value in NOT_NUMBERS:
            yield pays(f"[0.0, {value}]", "state 1 must be a finite number", _shown(value))
        size = "must be 0 or from 1e-30 to 1e30"
        yield pays("[0.0, 1e300]", f"of state 1 {size}", "got 1e+300")
        yield pays("[-1e-300, 1]", f"of state 0 {size}", "got -1e-300")
    yield general({"reward": None}, "reward is missing: 2 numbers")
    yield general({"reward_active": "[0.0, 1.0]"}, "reward and reward_active are the same")
    for value in ('"never"', '"Always"', '""', "true", "1", '["always"]', "{}"):
        yield general({"observed": value}, "observed: unknown", "when_played, always")
    kinds = "a channel has p01, p11, reward; any other arm passive, active, reward, reward_active"
    yield general({"passive": None}, "p01 or passive is missing", kinds)
    yield general({"p01": "0.5"}, "p01 and passive must not be in one table", kinds)
    yield general({"p11": "0.5"}, "p11 and passive must not be in one table", kinds)
    yield general({"rewards": "[0.0, 1.0]"}, "unknown key 'rewards'", kinds)
    yield general({'"two\\nlines"': "1"}, r"unknown key 'two\nlines'", kinds)
    for key, value in (("observed", '"always"'), ("active", "[[1, 0], [0, 1]]")):
        text = toml(arm={key: value})
        yield bad(f"{key} of a channel", text, f"arm 2: p01 and {key} must not be in one table")
    yield bad(
        "list reward", toml(arm={"reward": "[0, 1]"}), "arm 2: reward must be a finite number"
    )
    yield bad("no keys", toml() + "[[arm]]\n", "arm 3: p01 or passive is missing")

    shared = toml({"realisations": '"shared"'}, general={})
    yield bad("shared", shared, "realisations must be 'independent', as arm 2 moves otherwise")
    unclipped = toml({"options.feducb-wi.clip": "false"}, general={"active": None})
    yield bad("unclipped", unclipped.replace("[0.0, 1.0]", "[0.1, 1.0]"), "feducb-wi.clip must be")
    text = toml(
        {"options.fedtswi.prior": "[1, 1]"},
        general={"passive": str(eye), "active": None, "reward": "[0, 1, 2]"},
    )
    yield bad(
        "two priors of three", text, "fedtswi.prior must be one number, as arm 2 has 3 states"
    )


def bad_sweeps(bad: Callable[..., Any]) -> Iterator[Any]:
    """Sweeps that break a rule, in a study that does not."""

    def sweep(lines: str, *words: str) -> Any:
        name = lines.replace("\n", ", ")
        return bad(f"sweep {name[:60]}", f"{toml()}[sweep]\n{lines}\n", "sweep", *words)

    yield bad("sweep = 3", f"sweep = 3\n{toml()}", "sweep must be a [sweep] table, got 3")
    yield bad("[[sweep]]", f"{toml()}[[sweep]]\nagents = [1]\n", "must be a [sweep] table, got [")
    known = "known are agents, plays, horizon"
    yield sweep("", "must have a list of values", "agents, plays")
    yield sweep("together = true", "must have a list of values")
    yield sweep("agent = [1, 2]", "unknown key 'agent'", known)
    yield sweep("policies = ['whittle']", "unknown key 'policies'", known)
    yield sweep("options = [{}]", "unknown key 'options'", known)
    yield sweep("'two\\nlines' = [1]", r"unknown key 'two\\nlines'")
    yield sweep(f"{'a.' * 1200}a = [1]", "unknown key 'a.a.a'")
    yield sweep(f"agents.{'a.' * 1200}a = [1]", "unknown key 'agents.a.a'")
    yield sweep(f"policies.fedtswi.prior.{'a.' * 1200}a = 1", "prior must be a list of values, got")
    for value in ("3", '"paper"', "true", "{}", "1979-05-27", "nan", VAST):
        yield sweep(f"agents = {value}", "agents must be a list of values, got", _shown(value))
    yield sweep(
        f"agents = [{{{'a.' * 1200}a = 1}}]", "point 1", "whole number", "too large to show"
    )
    yield sweep("agents = []", "agents must have at least one value, got an empty list")
    for value in NOT_WHOLE:
        yield sweep(f"agents = [1, {value}]", "point 2 (agents = ", "whole number", _shown(value))
    yield sweep("plays = [1, 2, 3]", "point 3 (plays = 3): plays must", "between 1 and 2")
    yield sweep("agents = [1, 2, 1]", "points 1 and 3 must differ, got 'M = 1' twice")
    yield sweep("agents = [1, 2]\nplays = [1, 4]", "point 2 (agents = 1, plays = 4)", "got 4")
    yield sweep('schedule = ["paper", "weekly"]', "point 2", "unknown 'weekly'", "linear")
    yield sweep(f'schedule = ["{"x" * 10**5}"]', "point 1", "xxx...")
    yield sweep("weights = [[1, 1], [1]]", "point 2 (weights = [1])", "each of 2 agents")
    yield sweep("agents = [1, 2]\ntogether = 1", "together must be true or false, got 1")
    lists = "agents = [1, 2, 3]\nplays = [1, 2]\ntogether = true"
    yield sweep(lists, "must be of one length, got agents 3, plays 2")
    many = f"agents = {list(range(1, 41))}\nhorizon = {list(range(1, 41))}"
    yield sweep(many, "at most 1000 points, got 1600")
    yield sweep("policies.fedtswi-gap.gaps = [8, 32]", "'fedtswi-gap' must be", "fedtswi, whittle")
    yield sweep("policies.nope.gaps = [8, 32]", "'nope' must be", "fedtswi, whittle")
    yield sweep("policies.fedtswi.gaps = [8]", "unknown key 'gaps'; fedtswi has aggregation")
    yield sweep("policies.whittle.prior = [1]", "whittle takes no options")
    yield sweep("options.fedtswi.prior = [1, -1]", "point 2", "options.fedtswi.prior must be")
    both = "options.fedtswi.prior = [1]\npolicies.fedtswi.prior = [2]"
    yield sweep(both, "there twice")
    yield sweep("arm.3.p11 = [0.5]", "'arm.3.p11' must be arm.NUMBER", "from 1 to 2")
    yield sweep("arm.1.passive = [0.5]", "one of p01, p11, reward")
    yield sweep("arm.'a\\nb'.p11 = [0.5]", "must be arm.NUMBER")
    for value in NOT_NUMBERS:
        yield sweep(f"arm.2.p11 = [0.5, {value}]", "point 2", "arm 2: p11 must", _shown(value))
    for value in ("0", "-1", "4097", "1.5", '"2"', "true", VAST):
        yield sweep(f"copies = [{value}]", "copies must be a whole number from 1 to 4096")
    yield sweep('agents = [1, 2]\nlabels = ["a"]', "labels must be a list of 2 texts")
    yield sweep('agents = [1, 2]\nlabels = ["a", "a"]', "must differ, got 'a' twice")


def bad_studies() -> Iterator[Any]:
    """Study files that break a rule, with words that the message must have."""

    def bad(name: str, text: str, *words: str) -> Any:
        return pytest.param(text, words, id=name)

    def short(value: str) -> str:
        return value if len(value) < 40 else f"{value[:20]}..."

    def head(key: str, value: str, *words: str) -> Any:
        expected = (key.split(".")[0].strip('"'), _shown(value), *words)
        return bad(short(f"{key} = {value}"), toml({key: value}), *expected)

    def unknown(key: str, *words: str) -> Any:
        last = key.split(".")[0 if key.startswith("a.") else -1].strip('"')
        return bad(short(f"unknown {key}"), toml({key: "3"}), f"unknown key '{last}'", *words)

    def arm(key: str, value: str, *words: str) -> Any:
        expected = ("arm 2", key, _shown(value), *words)
        return bad(short(f"{key} = {value}"), toml(arm={key: value}), *expected)

    for value in ("0", "-1", "100.5", *NOT_NUMBERS):
        yield head("privacy.epsilon", value, "privacy.epsilon must be", "above 0 and at most 100")
    for value in ("0", "-1e-06", "0.0011", *NOT_NUMBERS):
        text = toml({"privacy.epsilon": "1", "privacy.delta": value})
        yield bad(short(f"privacy.delta = {value}"), text, "privacy.delta must be", "most 0.001")
    yield bad(
        "privacy paper",
        toml({"privacy.epsilon": "1"}),
        "schedule must be 'linear' or 'doubling'",
        "got 'paper'",
    )
    yield head("privacy", "3", "privacy must be a table")
    yield bad(
        "privacy.helper",
        toml({"privacy.helper": "3"}),
        "privacy: unknown 'helper'; known are epsilon, delta",
    )
    for key in ("p01", "p11"):
        yield from (arm(key, value, "must be") for value in NOT_NUMBERS)
        yield from (arm(key, value, "[0, 1]") for value in ("-0.1", "1.1", "2", "-1", "1e300"))
    yield from (arm("reward", value, "must be") for value in NOT_NUMBERS)
    yield from (arm("reward", value, "must be", "negative") for value in ("-1", "-0.5"))
    yield from (arm("reward", value, "1e30") for value in ("1e300", "1e-300"))
    for key in ("p01", "p11", "reward"):
        text = toml(arm={key: None})
        yield pytest.param(text, ("arm 2", key, "missing"), id=f"no {key}")
    text = toml(arm={"p10": "0.5"})
    yield bad("unknown p10", text, "arm 2", "unknown key 'p10'", "p01, p11, reward")

    yield from bad_general_arms(bad)
    yield from bad_sweeps(bad)

    for key in ("agents", "plays", "horizon", "trials", "seed"):
        yield from (head(key, value, "whole number") for value in NOT_WHOLE)
    yield from (head(key, "0", "whole number") for key in ("agents", "plays", "horizon", "trials"))
    yield head("plays", "3", "between 1 and 2, the number of arms")
    yield head("agents", "65537", "65536")
    yield head("horizon", "1000000001", "at most")
    yield head("trials", str(2**32 + 1), "2^32")
    yield head("seed", str(2**64), "2^64 - 1")

    for value in ('"whittle"', "3", "true", "{}", "[]", "[1]", "[true]", '[["whittle"]]', '[""]'):
        yield head("policies", value)
    yield head("policies", '["fedtswi", "nope"]', "unknown 'nope'", "fedtswi, fedts-myopic")
    yield head("policies", '["Whittle"]', "unknown 'Whittle'")
    yield head("policies", '["whittle", "myopic", "whittle"]', "'whittle' twice")
    yield head("policies", '["two\\nlines"]', r"'two\nlines'")
    for value in ('"both"', "1", "true", '["shared"]', "{}", '"Shared"'):
        yield head("realisations", value, "independent, shared")
        yield head("schedule", value, "paper, linear, doubling")
        yield head("draws", value, "shared, per-agent")

    for value in ("3", "[1]", '"x"', "true"):
        yield head("options", value, "table")
        yield head("options.fedtswi", value, "fedtswi", "table")
    yield head("options.nope", "{}", "options: unknown 'nope'")
    yield unknown("options.fedtswi.clip", "options.fedtswi", "prior")
    yield unknown("options.fed1-ucb.prior", "options.fed1-ucb", "sigma")
    yield unknown("options.whittle.prior", "options.whittle", "takes no options")
    for value in ("1", "0", '"yes"', "1.0", "[true]", "{}", "nan"):
        yield head("options.feducb-wi.clip", value, "feducb-wi.clip", "true or false")
    priors = ["[0, 1]", "[1]", "[]", '"x"', '"ab"', "0", "true", "{}", "[1, 2, 3]", "[-1, 1]"]
    priors += ["-1", "nan", "inf", "1e300", HUGE]
    priors += ["[nan, 1]", "[1, inf]", "[true, 1]", '["1", 1]', "[1e300, 1]", "[1e-300, 1]"]
    priors += [f"[1, {HUGE}]", f"[1, {VAST}]", "[[1, 1], 1]"]
    for value in priors:
        yield head("options.fedtswi.prior", value, "fedtswi.prior", "two numbers")
        yield head("options.feducb-myopic.prior", value, "feducb-myopic.prior", "two numbers")
    for value in ("0", "-1", "nan", "inf", '"x"', "true", "[1]", "1e300", HUGE, VAST):
        yield head("options.fed1-ucb.sigma", value, "fed1-ucb.sigma", "positive")

    for value in ("[1]", "[1, 2, 3]", "[]", "1", '"ab"', "true", "{}"):
        yield head("weights", value, "2 agents")
    for value in ("-1", "nan", "inf", "true", '"1"', "[1]", "1e300", HUGE, VAST):
        yield head("weights", f"[1, {value}]", "agent 2", "number")

    for key in ("trails", "name", "arms", "Trials", '"two\\nlines"', "a." * 1200 + "a"):
        yield unknown(key, "known are agents, plays")
    deep = toml({"weights." + "a." * 1200 + "a": "1"})
    yield bad("weights too deep to show", deep, "weights", "too large to show")

    rest = 'agents = 2\npolicies = ["whittle"]\n'
    yield bad("no arms", rest, "arm", "[[arm]]")
    yield bad("empty file", "", "arm", "[[arm]]")
    for value in (
        "3",
        "[]",
        "[3]",
        "true",
        '"x"',
        "nan",
        "{}",
        "{p01 = 0.2, p11 = 0.8, reward = 1}",
    ):
        yield bad("arm", f"arm = {value}\n", "arm", "[[arm]]")
    yield bad("a table for all arms", "[arm]\np01 = 0.2\np11 = 0.8\nreward = 1\n", "[[arm]]")

    for text in ("agents =", "= 3", "just words", "agents = 1\nagents = 2", "[[arm]", "a = 'x\n"):
        yield bad("not TOML", text, "not valid TOML", "(at ")
    yield bad("digits", f"trials = {'9' * 5000}\n", "not valid TOML", "digits")
    yield bad("lists in lists", "x = " + "[" * 20000 + "]" * 20000, "not valid TOML", "nested")
    yield bad("tables in tables", "x = " + "{a = " * 20000 + "1" + "}" * 20000, "not valid TOML")
    yield bad(
        "a long text", f'realisations = "{"x" * 10**5}"\n{OTHER_ARM}', "realisations", "xxx..."
    )
    yield bad("a long list", f"trials = [{'1, ' * 10**4}]\n{OTHER_ARM}", "trials", "[1, 1, ")
