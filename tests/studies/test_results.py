"""What a run gives: the numbers agree with each other, in memory, in data frames and in files."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmab import Results, run
from tests.studies.small import HORIZON, KNOWN, STUDY, TRIALS


def test_results_are_a_mapping_by_policy(results):
    assert isinstance(results, Results)
    assert list(results) == ["fedtswi", "whittle"]
    assert len(results) == 2
    assert "whittle" in results
    assert "optimal" not in results
    with pytest.raises(KeyError):
        _ = results["optimal"]
    assert results.trials == TRIALS
    assert not results.interrupted
    assert results.study is STUDY


@pytest.mark.parametrize(
    ("reached", "full"),
    [
        ([10.0, 10, 6, 4, 1], 2),  # six go on to the third, which only four play to the end
        ([10.0, 10, 5, 5], 3),
        ([10.0], 1),  # one episode is all there is
        ([10.0, 4], 1),
    ],
)
def test_episodes_count_while_half_of_the_trials_reach_them(results, reached, full):
    one = replace(results["fedtswi"], episode_trials=np.array(reached))
    assert one.full_episodes == full


def test_curves_by_episode_leave_out_episodes_that_do_not_count(results):
    learnt = results["fedtswi"]
    count = learnt.full_episodes
    assert 1 < count < len(learnt.episode_trials)
    for key in ("length", "reward", "regret", "error"):
        curve, whole = learnt.by_episode(key), getattr(learnt, f"episode_{key}")
        np.testing.assert_array_equal(curve.mean, whole.mean[:count])
        np.testing.assert_array_equal(curve.se, whole.se[:count])
    with pytest.raises(ValueError, match="no error by episode"):
        results["whittle"].by_episode("error")


def test_means_and_errors_by_policy(results):
    assert results.mean == {name: result.mean for name, result in results.items()}
    assert results.se == {name: result.se for name, result in results.items()}
    for name in results:
        assert type(results.mean[name]) is float
        assert 0 < results.mean[name] < 0.9
        assert 0 < results.se[name] < 0.1


def test_curves_have_a_value_for_each_slot_and_episode(results):
    for result in results.values():
        for curve in (result.slots, result.regret):
            assert curve.mean.shape == curve.se.shape == (HORIZON,)
            assert np.all(np.isfinite(curve.mean))
            assert np.all(curve.se >= 0)
        episodes = len(result.episode_trials)
        for curve in (result.episode_length, result.episode_reward, result.episode_regret):
            assert curve.mean.shape == curve.se.shape == (episodes,)
            assert np.all(np.isfinite(curve.mean))
    assert results["fedtswi"].episode_error.mean.shape == (
        len(results["fedtswi"].episode_trials),
        2,
    )
    assert results["whittle"].episode_error is None


def test_summaries_agree_with_the_curves(results):
    for result in results.values():
        assert result.slots.mean.mean() == pytest.approx(result.mean)
        assert result.slots.mean[-HORIZON // 10 :].mean() == pytest.approx(result.final)
        assert result.regret.mean[-1] / HORIZON == pytest.approx(result.behind, abs=1e-9)
        assert result.regret.se[-1] / HORIZON == pytest.approx(result.behind_se, abs=1e-9)
        assert result.episode_trials[0] == TRIALS
        assert np.all(np.diff(result.episode_trials) <= 0)
        assert result.episode_trials.sum() / TRIALS == pytest.approx(result.episodes)
        slots = result.episode_trials @ result.episode_length.mean
        assert slots == pytest.approx(TRIALS * HORIZON)


def test_whittle_is_the_reference(results):
    whittle = results["whittle"]
    assert whittle.behind == whittle.behind_se == 0
    assert not whittle.regret.mean.any()
    assert whittle.episodes == 1


def test_differences_are_paired(results):
    gap, gap_se = results.difference("whittle", "fedtswi")
    assert gap == pytest.approx(results["fedtswi"].behind)
    assert gap_se == pytest.approx(results["fedtswi"].behind_se)
    assert results.difference("fedtswi", "whittle") == pytest.approx((-gap, gap_se))
    assert results.difference("whittle", "whittle") == (0, 0)
    assert np.sqrt(np.diag(results.covariance)) == pytest.approx(list(results.se.values()))


# ------------------------------------------------------------------------------- frames and files


def test_frames_have_the_same_numbers(results):
    by_policy = results.to_pandas()
    assert list(by_policy.index) == list(results)
    assert by_policy.loc["fedtswi", "mean"] == results.mean["fedtswi"]
    assert {"mean", "se", "final", "final_se", "episodes"} <= set(by_policy.columns)

    by_slot = results.to_pandas("slot")
    assert len(by_slot) == 2 * HORIZON
    mine = by_slot[by_slot.policy == "fedtswi"]
    np.testing.assert_array_equal(mine.slot, np.arange(1, HORIZON + 1))
    np.testing.assert_array_equal(mine.reward, results["fedtswi"].slots.mean)
    np.testing.assert_array_equal(mine.reward_se, results["fedtswi"].slots.se)
    np.testing.assert_array_equal(mine.regret, results["fedtswi"].regret.mean)
    np.testing.assert_array_equal(mine.regret_se, results["fedtswi"].regret.se)

    by_episode = results.to_pandas("episode")
    mine = by_episode[by_episode.policy == "fedtswi"]
    np.testing.assert_array_equal(mine.trials, results["fedtswi"].episode_trials)
    np.testing.assert_array_equal(mine.length, results["fedtswi"].episode_length.mean)
    np.testing.assert_array_equal(mine.reward, results["fedtswi"].episode_reward.mean)
    np.testing.assert_array_equal(mine.error_arm2, results["fedtswi"].episode_error.mean[:, 1])
    assert by_episode[by_episode.policy == "whittle"].error_arm1.isna().all()


def test_a_frame_is_by_policy_slot_or_episode(results):
    with pytest.raises(ValueError, match="by must be one of policy, slot, episode, got 'arm'"):
        results.to_pandas("arm")


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a table; an empty cell is NaN."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {k: v if k == "policy" else float(v or "nan") for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def test_files_have_the_same_numbers(results, tmp_path):
    results.write(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "slots.csv",
        "episodes.csv",
    }
    assert json.loads((folder / "results.json").read_text()) == results.to_json()
    for file, rows in (
        ("slots.csv", results.slot_rows()),
        ("episodes.csv", results.episode_rows()),
    ):
        written = read(folder / file)
        assert len(written) == len(rows)
        for mine, theirs in zip(written, rows, strict=True):
            assert list(mine) == list(theirs)
            for key, number in theirs.items():
                assert mine[key] == number or (number != number and mine[key] != mine[key])
        text = (folder / file).read_text(encoding="utf-8")
        assert "nan" not in text.lower()
        assert "np." not in text


def test_what_one_trial_cannot_tell_is_null_or_empty(tmp_path):
    one = run(replace(KNOWN, trials=1))
    assert np.isnan(one.se["random"])
    summary = one.to_json()["policies"]["random"]
    assert summary["se"] is summary["final_se"] is summary["behind_whittle_se"] is None
    json.dumps(one.to_json(), allow_nan=False)
    one.write(tmp_path)
    assert all(np.isnan(row["reward_se"]) for row in read(tmp_path / "slots.csv"))
    assert one.to_pandas().loc["random"].se != one.to_pandas().loc["random"].se
