"""What a federation's file may say."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from rmab.errors import FederationError
from rmab.policies.registry import LEARNERS, SERVED
from rmab.protocol.config import Federation, KnownArm, load_federation

FILE = """\
name = "spectrum"
plays = 2
policy = "fedtswi"
schedule = "linear"
deadline = 30
seed = 0
[[arm]]
reward = 0.4
[[arm]]
states = 3
reward = [0.0, 0.5, 1.0]
"""


def written(tmp_path, text):
    path = tmp_path / "federation.toml"
    path.write_text(text)
    return path


def test_the_file_says_what_is_known(tmp_path):
    federation = load_federation(written(tmp_path, FILE))
    assert federation.arms == (KnownArm(2, (0.0, 0.4)), KnownArm(3, (0.0, 0.5, 1.0)))
    assert (federation.name, federation.plays, federation.deadline) == ("spectrum", 2, 30)
    assert federation.shape.gaps == 1
    assert federation.draws == "shared"


KINDS = """\
name = "clinic"
plays = 1
policy = "fedtswi"
[[arm]]
observed = "always"
action_dependent = true
reward_passive = [0.2, 0.1]
[[arm]]
states = 3
reward_active = [0.0, 0.5, 1.0]
observed = "always"
[[arm]]
reward = 0.4
[weights]
ward-1 = 2
ward-2 = 0.5
"""


def test_arms_of_every_kind_and_weights_of_agents(tmp_path):
    federation = load_federation(written(tmp_path, KINDS))
    assert federation.arms == (
        KnownArm(2, (0.0, 0.0), (0.2, 0.1), "always", action_dependent=True),
        KnownArm(3, (0.0, 0.5, 1.0), (), "always"),
        KnownArm(2, (0.0, 0.4)),
    )
    assert dict(federation.weights) == {"ward-1": 2, "ward-2": 0.5}
    shape = federation.shape
    assert (shape.always, shape.controlled, shape.gaps) == ((0, 1), (0,), 1)
    assert shape.kinds_by_arm == [2, 2, 2]
    assert not federation.channels
    hidden = KINDS.replace('observed = "always"\naction', "action")
    shape = load_federation(written(tmp_path, hidden)).shape
    assert (shape.always, shape.gaps, shape.kinds_by_arm) == ((1,), 8, [9, 2, 9])


def test_what_counts_mean_depends_on_the_kind_of_arms_and_not_on_weights(tmp_path):
    def of(text):
        return load_federation(written(tmp_path, text)).fingerprint()

    assert of(KINDS) == of(KINDS.replace("ward-1 = 2", "ward-1 = 3"))
    for line in ("action_dependent = true\n", "reward_passive = [0.2, 0.1]\n"):
        other = KINDS.replace(line, "reward = 0.0\n" if "reward" in line else "")
        assert of(KINDS) != of(other)
    assert of(KINDS) != of(KINDS.replace('1.0]\nobserved = "always"', "1.0]"))
    # That of arms as they always were is what databases have.
    meaning = '["spectrum", 2, [[2, [0.0, 0.4]], [3, [0.0, 0.5, 1.0]]], 1]'
    assert of(FILE) == hashlib.sha256(meaning.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (
            '"always"',
            '"seldom"',
            "arm 1: observed: unknown 'seldom'; known are when_played, always",
        ),
        ("= true", "= 1", "arm 1: action_dependent must be true or false, got 1"),
        ("[0.2, 0.1]", "0.2", "arm 1: reward_passive must be a list of 2 numbers"),
        ("[0.2, 0.1]", "[0.2, 1e40]", "arm 1: reward_passive of state 1 must be 0 or from 1e-30"),
        ("reward = 0.4", "", "arm 3: reward must be a number, or a list of 2 numbers"),
        (
            "states = 3",
            "states = 3\nreward = [1, 1, 1]",
            "arm 2: reward and reward_active are the same: only one may be given",
        ),
        ("ward-1 = 2", "ward-1 = -1", "weights: that of ward-1 must be a number from 0 to 1e6"),
        ("ward-1 = 2", '"a b" = 2', "weights: an agent's name must have 1 to 64 letters"),
        ("[weights]", "[other]", "unknown key 'other'; known are .*weights"),
        (
            "[weights]",
            "[options]\nclip = false\n[weights]",
            "options: unknown key 'clip'",
        ),
        (
            '"fedtswi"',
            '"feducb-wi"\noptions = {clip = false}',
            "options.clip must be true unless all arms are channels",
        ),
    ],
)
def test_what_may_not_be_said_of_arms_and_weights(tmp_path, old, new, rule):
    assert old in KINDS
    with pytest.raises(FederationError, match=rule) as caught:
        load_federation(written(tmp_path, KINDS.replace(old, new, 1)))
    assert len(str(caught.value).splitlines()) == 1


def test_rows_are_not_tied_where_nobody_knows_them():
    """The arms of a federation say nothing of their rows."""
    arms = (KnownArm(2, (0.0, 1.0)),) * 2
    with pytest.raises(FederationError, match=r"options\.tied of fedtswi must be false, as no arm"):
        Federation("test", 1, arms, "fedtswi", options={"tied": True})
    assert Federation("test", 1, arms, "fedtswi", options={"tied": False}).options


ROBUST = [name for name in LEARNERS if name.endswith("-robust")]


@pytest.mark.parametrize("policy", [name for name in LEARNERS if name not in SERVED])
def test_a_learner_that_is_for_studies_alone_is_refused(tmp_path, policy):
    with pytest.raises(FederationError, match=f"unknown '{policy}'; known are fedtswi, "):
        load_federation(written(tmp_path, FILE.replace("fedtswi", policy)))


WATCHES = "wiql"  # which is not for channels


@pytest.mark.parametrize("policy", [name for name in SERVED if name not in (*ROBUST, WATCHES)])
def test_any_learner_may_be_named(tmp_path, policy):
    federation = load_federation(written(tmp_path, FILE.replace("fedtswi", policy)))
    assert federation.shape.gaps == (32 if policy.endswith("-gap") else 1)
    assert federation.longest is None
    assert not federation.recalls


@pytest.mark.parametrize("policy", ROBUST)
def test_learners_for_channels_are_refused_where_other_arms_are(tmp_path, policy):
    with pytest.raises(
        FederationError,
        match=r"options\.forget of .*-robust must not be 'bank', as arm 2 is not of",
    ):
        load_federation(written(tmp_path, FILE.replace("fedtswi", policy)))
    federation = Federation("test", 1, (KnownArm(2, (0.0, 1.0)),) * 2, policy)
    assert federation.shape.gaps == 32
    assert federation.longest == 50
    assert federation.plan_per_agent
    assert federation.needs_each
    assert federation.forgets
    other = replace(federation, options={"forget": "never", "aggregation": "sum", "longest": 9})
    assert other.plan_per_agent  # each draws for itself all the same
    assert not other.needs_each
    assert not other.forgets
    assert other.longest == 9


def test_counts_of_federations_that_differ_in_what_they_mean_are_told_apart(tmp_path):
    def of(text):
        return load_federation(written(tmp_path, text)).fingerprint()

    same = FILE.replace("seed = 0", "seed = 4").replace("deadline = 30", "deadline = 5")
    assert of(FILE) == of(same)
    for other in (FILE.replace("0.5", "0.6"), FILE.replace("fedtswi", "fedtswi-gap")):
        assert of(FILE) != of(other)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('name = "spectrum"', 'name = "two words"', "name must have 1 to 64 letters"),
        ('name = "spectrum"\n', "", "name is missing"),
        ("plays = 2", "plays = 3", "plays must be a whole number between 1 and 2"),
        ("plays = 2", "plays = true", "plays must be a whole number"),
        ('"fedtswi"', '"whittle"', "policy: unknown 'whittle'; known are fedtswi, "),
        ('"linear"', '"weekly"', "schedule: unknown 'weekly'"),
        ("deadline = 30", "deadline = 0", "deadline must be a number of seconds above 0"),
        ("seed = 0", "slot_seconds = -1", "slot_seconds must be 0 for no limit, or from 1e-9"),
        ("seed = 0", "slot_seconds = 1e-300", "slot_seconds must be 0 for no limit"),
        ("seed = 0", "slot_seconds = nan", "slot_seconds must be 0 for no limit"),
        ("seed = 0", "cap = 0.5", "cap must be a number from 1 to 1e"),
        ("seed = 0", "cap = true", "cap must be a number from 1"),
        ("deadline = 30", "live_seconds = 0", "live_seconds must be a number of seconds above 0"),
        ("deadline = 30", "live_seconds = '9'", "live_seconds must be a number of seconds above 0"),
        ("deadline = 30", "live_seconds = 1e9", "and at most 31536000, got 1000000000.0"),
        ("seed = 0", "seed = -1", "seed must be a whole number from 0"),
        ("seed = 0", "speed = 0", "unknown key 'speed'; known are name, "),
        (
            "reward = 0.4",
            "reward = 0.4\np01 = 0.2",
            r"arm 1: unknown key 'p01' \(dynamics are learnt\)",
        ),
        (
            "reward = 0.4",
            'reward = "0.4"',
            "arm 1: reward must be a number, or a list of 2 numbers",
        ),
        ("states = 3", "states = 4", "arm 2: reward must be a list of 4 numbers"),
        ("states = 3", "states = 1", "arm 2: states must be a whole number from 2 to 64"),
        ("reward = 0.4", "reward = 1e-40", "arm 1: reward of state 1 must be 0 or from 1e-30"),
        (
            "[[arm]]\nreward = 0.4",
            "[options]\ngaps = 64\n[[arm]]\nreward = 0.4",
            "options: unknown key 'gaps'",
        ),
        (
            "[[arm]]\nreward = 0.4",
            "[options]\nprior = [1, 2]\n[[arm]]\nreward = 0.4",
            "prior must be one number",
        ),
        ("plays = 2", "plays = ", "not valid TOML"),
    ],
)
def test_what_it_may_not_say_is_refused_in_one_line_with_the_file(tmp_path, old, new, rule):
    assert old in FILE
    path = written(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(FederationError, match=rule) as caught:
        load_federation(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FederationError, match=r"none\.toml: no such file"):
        load_federation(tmp_path / "none.toml")


CHANNELS = 'name = "spectrum"\nplays = 1\npolicy = "fedtswi"\n[[arm]]\nreward = 0.4\n'


def test_agents_may_draw_for_themselves(tmp_path):
    made = load_federation(written(tmp_path, 'draws = "own"\ndoubt = 0.3\n' + CHANNELS))
    assert (made.draws, made.doubt) == ("own", 0.3)
    assert not made.plan_per_agent  # one plan, for agents that cannot


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("doubt = 0", "doubt must be a number above 0 and at most 1, got 0"),
        ("doubt = 1.5", "doubt must be a number above 0 and at most 1, got 1.5"),
        ('draws = "own"\naggregation = "none"', "share no sum"),
    ],
)
def test_own_draws_that_cannot_be_are_refused(tmp_path, keys, why):
    with pytest.raises(FederationError, match=why):
        load_federation(written(tmp_path, keys + "\n" + CHANNELS))


def test_own_draws_are_for_channels_and_policies_that_draw(tmp_path):
    own = 'draws = "own"\n' + CHANNELS
    path = written(tmp_path, own.replace("fedtswi", "feducb-wi"))
    with pytest.raises(FederationError, match="feducb-wi does not draw"):
        load_federation(path)
    path = written(tmp_path, own + "[[arm]]\nstates = 3\nreward = [0.0, 0.5, 1.0]\n")
    with pytest.raises(FederationError, match="arm 2 is no channel"):
        load_federation(path)


SECURE = FILE + '[privacy]\nhelper = "https://helper.example:9443"\n'


def test_a_federation_may_have_a_helper(tmp_path):
    privacy = load_federation(written(tmp_path, SECURE)).privacy
    assert privacy is not None
    assert (privacy.helper, privacy.least, privacy.groups) == ("https://helper.example:9443", 3, 1)
    text = SECURE.replace("https://helper.example:9443", "http://127.0.0.1:9080")
    privacy = load_federation(written(tmp_path, text + "least = 5\ngroups = 2\n")).privacy
    assert privacy is not None
    assert (privacy.helper, privacy.least, privacy.groups) == ("http://127.0.0.1:9080", 5, 2)
    assert load_federation(written(tmp_path, FILE)).privacy is None


def test_what_counts_mean_does_not_depend_on_who_opens_them(tmp_path):
    secure, plain = (load_federation(written(tmp_path, text)) for text in (SECURE, FILE))
    assert secure.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SECURE.replace("https:", "http:"), "privacy.helper must begin with https:// unless"),
        (SECURE.replace("https://", "ftp://"), "privacy.helper must be an address like"),
        (SECURE.replace('"https://helper.example:9443"', "7"), "privacy.helper must be an address"),
        (SECURE + "least = 2\n", "privacy.least must be a whole number from 3 to 10000, got 2"),
        (SECURE + "least = 3.5\n", "privacy.least must be a whole number"),
        (SECURE + "groups = 0\n", "privacy.groups must be a whole number from 1"),
        (SECURE + "salt = 1\n", "privacy: unknown key 'salt'; known are helper, least, groups"),
        (SECURE + "survey = 16\n", "privacy.survey needs privacy.epsilon"),
        (FILE + "[privacy]\nleast = 3\n", "privacy.helper is missing"),
        ("privacy = 3\n" + FILE, "privacy must be a table, got 3"),
        (SECURE.replace('"linear"', '"paper"'), 'schedule must be "linear" or "doubling" with'),
        (
            'aggregation = "pairs"\n'
            + SECURE.replace("states = 3\nreward = [0.0, 0.5, 1.0]", "reward = 1.0"),
            "aggregation = 'pairs' cannot go with [privacy]",
        ),
        ('aggregation = "none"\n' + SECURE, "aggregation = 'none' cannot go with [privacy]"),
        ("cap = 2\n" + SECURE, "cap cannot go with [privacy]"),
        (SECURE + "[weights]\none = 2\n", "weights cannot go with [privacy]"),
        (
            SECURE.replace('"fedtswi"', '"fedtswi-gap"')
            .replace("states = 3\n", "")
            .replace("[0.0, 0.5, 1.0]", "1.0")
            + '[options]\nforget = "bank"\n',
            "options.forget = 'bank' cannot go with [privacy]",
        ),
    ],
)
def test_what_needs_more_than_sums_cannot_have_a_helper(tmp_path, text, reason):
    with pytest.raises(FederationError) as error:
        load_federation(written(tmp_path, text))
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("plays", [1, 2], [0, 3, 1.0, True]),
        ("seed", [0, 2**64 - 1], [-1, 2**64, 0.5]),
        ("horizon", [1, 10**9], [0, 10**9 + 1]),
        ("deadline", [1e-3, 86_400], [0, 86_400.1, "1", True]),
        ("slot_seconds", [0, 1e-9, 86_400], [9e-10, -1e-9, 86_401, True]),
        ("cap", [None, 1, 1e6], [0.999, float("inf"), "1"]),
        ("uploads_per_second", [0, 1e-6, 1e6], [9e-7, 1_000_001, -1, "1"]),
        ("incarnations_per_hour", [0, 1e-6, 1e6], [9e-7, 1_000_001, -1]),
        ("live_seconds", [None, 1e-3, 31_536_000], [0, 31_536_001, -1]),
        ("doubt", [1e-9, 1], [0, 1.001]),
        ("reference", [None, 0, -3.5], ["1", True, float("nan")]),
        ("weights", [{}, {"a": 0}, {"a": 1e6, "b": 0.5}], [{"a": 1e6 + 1}, {"a": -1}, {"": 1}, []]),
    ],
)
def test_each_number_has_its_edges(key, good, bad):
    arms = (KnownArm(2, (0.0, 1.0)), KnownArm(2, (0.0, 0.4)))
    settings: dict[str, Any] = {"name": "f", "plays": 1, "arms": arms}
    for value in good:
        assert getattr(Federation(**(settings | {key: value})), key) == value
    for value in bad:
        with pytest.raises(FederationError, match=f"^{key}") as error:
            Federation(**(settings | {key: value}))
        assert "\n" not in str(error.value)


def test_a_server_keeps_each_agents_counts_where_a_sum_is_not_enough():
    arms = (KnownArm(2, (0.0, 1.0)), KnownArm(2, (0.0, 0.4)))
    plain = Federation("f", 1, arms)
    assert not plain.needs_each
    assert not plain.recalls
    cases: list[dict[str, Any]] = [{"weights": {"a": 2.0}}, {"cap": 2.0}, {"aggregation": "none"}]
    for changes in cases:
        assert replace(plain, **changes).needs_each
    pairs = replace(plain, aggregation="pairs")
    assert pairs.needs_each
    assert pairs.recalls
    assert plain.heard_seconds == 2 * plain.deadline
    assert replace(plain, live_seconds=7.0).heard_seconds == 7.0
    paces = [replace(plain, slot_seconds=x).paces for x in (0.0, 1e-4, 0.001)]
    assert paces == [False, False, True]  # the default holds nobody up
    per_agent = replace(plain, draws="per-agent")
    assert [x.plan_per_agent for x in (plain, pairs, per_agent)] == [False, True, True]
