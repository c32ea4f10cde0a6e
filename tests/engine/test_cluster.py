"""Trials on a real Ray of several nodes: the same numbers, whatever happens to nodes and workers.

Where Ray is not installed these tests fail: it is part of the development's lock file.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmab
from rmab import Policy, Results, StudyError, UnavailableError, UnreachableError, run
from rmab.engine import cluster
from rmab.engine.cluster import Cluster
from rmab.engine.device import versions
from rmab.planning.tables import whittle_at
from tests.studies.small import KNOWN

# JAX warns of forks, of which Ray's nodes are made; they become other programs at once.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

# Of many blocks that take long enough to be lost on the way.
LONG = replace(KNOWN, policies=["whittle"], trials=60_000)
SHORT = replace(LONG, trials=1000)
BATCH = 32


def same(first: Results, second: Results) -> bool:
    """Whether all numbers are, to the last bit."""
    return (
        first.summary() == second.summary()
        and np.array_equal(first.covariance, second.covariance)
        and first.slot_rows() == second.slot_rows()
        and repr(first.episode_rows()) == repr(second.episode_rows())
    )


class Nodes:
    """Ray on this machine: a head without cores, and nodes of one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as OfRay

        # Ray believes that a node is lost once it has not answered for some time, 15 s by default.
        sooner = {"health_check_period_ms": 300}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": sooner}
        self._all: Any = OfRay(initialize_head=True, head_node_args=head)
        self.nodes = [self.add(), self.add()]

    @property
    def address(self) -> str:
        return str(self._all.address)

    def add(self) -> Any:
        return self._all.add_node(num_cpus=1)

    def kill(self, node: Any) -> None:
        """As where a machine loses its power."""
        self._all.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        self._all.head_node.kill_gcs_server()

    def close(self) -> None:
        self._all.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole() -> Results:
    return run(LONG)


# -------------------------------------------------------------------------------- losing machines


@pytest.mark.slow
def test_a_node_that_is_lost_costs_time_only(nodes, whole, monkeypatch):
    """It is killed in the middle, with blocks under way."""
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.1)
    steps = []

    def progress(trials: int) -> None:
        steps.append(trials)
        if len(steps) == 4:
            nodes.kill(nodes.nodes.pop())

    results = run(LONG, progress, batch=BATCH, ray=nodes.address)
    assert same(results, whole)
    assert sum(steps[:4]) < LONG.trials / 2
    assert results.provenance is not None
    assert results.provenance.workers == 1
    assert results.provenance.threads is None
    nodes.nodes.append(nodes.add())


def interrupt_after(steps: int) -> Callable[[int], None]:
    def progress(_: int) -> None:
        nonlocal steps
        steps -= 1
        if steps == 0:
            raise KeyboardInterrupt

    return progress


@pytest.mark.slow  # with a Ray of its own this is in tests/cli, too
def test_a_checkpoint_goes_on_with_and_without_ray(nodes, whole, tmp_path):
    for ray in (nodes.address, None):
        part = run(LONG, interrupt_after(6), batch=BATCH, checkpoint=tmp_path, ray=ray)
        assert part.interrupted
    assert same(run(LONG, batch=BATCH, checkpoint=tmp_path, ray="auto"), whole)


@pytest.mark.slow
def test_points_of_a_sweep_are_run_side_by_side(nodes, tmp_path):
    """Interrupted in the middle, and gone on with."""
    sweep = rmab.Sweep(replace(LONG, trials=20_000), {"seed": [3, 4, 5]})
    wanted = rmab.run_sweep(sweep)
    how = {"batch": BATCH, "checkpoint": tmp_path, "ray": nodes.address}
    first, second = (tmp_path / "checkpoint" / f"point-{n}.npz" for n in (1, 2))

    def interrupt(_: int) -> None:
        if first.exists() and second.exists():
            raise KeyboardInterrupt

    assert rmab.run_sweep(sweep, interrupt, **how).interrupted
    found = rmab.run_sweep(sweep, **how)
    assert list(found) == list(wanted) == ["seed = 3", "seed = 4", "seed = 5"]
    for label in wanted:
        assert same(found[label], wanted[label])


# ------------------------------------------------------------------------------------- in a worker


def dies_once(flag: Path) -> Policy:
    """A policy of one's own whose worker is killed when it is first compiled."""

    driver = os.getpid()  # where planners are tried first

    def table(*arguments: Any) -> Any:
        if os.getpid() != driver and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return whittle_at(*arguments)

    return Policy("mine", table, max_age=LONG.horizon)


@pytest.mark.slow  # a node that is lost loses workers, too
def test_a_worker_that_is_killed_costs_time_only(nodes, tmp_path):
    mine = replace(SHORT, policies=[dies_once(tmp_path / "flag")])
    results = run(mine, batch=BATCH, ray=nodes.address)
    assert (tmp_path / "flag").exists()
    alone = run(SHORT, batch=BATCH)
    assert results["mine"].mean == alone["whittle"].mean
    assert results["mine"].se == alone["whittle"].se


def test_an_error_in_a_worker_is_passed_on(nodes):
    driver = os.getpid()  # where planners are tried first

    def table(*arguments: Any) -> Any:
        if os.getpid() != driver:
            raise StudyError("no table today")
        return whittle_at(*arguments)

    mine = Policy("mine", table, max_age=LONG.horizon)
    with pytest.raises(StudyError, match="no table today"):
        run(replace(SHORT, policies=[mine]), batch=BATCH, ray=nodes.address)


def test_trials_that_kill_every_worker_are_given_up(nodes, monkeypatch):
    driver = os.getpid()

    def table(*arguments: Any) -> Any:
        if os.getpid() != driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return whittle_at(*arguments)

    monkeypatch.setattr(cluster, "_LOSSES", 1)
    mine = Policy("mine", table, max_age=LONG.horizon)
    with pytest.raises(UnavailableError, match="workers were lost 1 times with the same trials"):
        run(replace(SHORT, policies=[mine]), batch=BATCH, ray=nodes.address)


def test_workers_of_another_version_are_refused(nodes, monkeypatch):
    there = versions()
    monkeypatch.setattr(cluster, "versions", lambda: there | {"rmab": "9.9", "python": "4"})
    with pytest.raises(StudyError) as why:
        run(SHORT, ray=nodes.address)
    assert f"a worker has other versions: rmab {there['rmab']} there, 9.9 here" in str(why.value)
    assert "python" not in str(why.value)


def test_a_cluster_without_room_is_not_waited_for_for_ever(nodes, monkeypatch):
    monkeypatch.setattr(cluster, "_START_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="no worker has started for 0 s; are all of its 2 C"):
        run(SHORT, ray=nodes.address)


def test_workers_on_another_kind_of_device_are_refused(nodes):
    with Cluster(nodes.address) as there:
        ours, there.device = there.device, "NVIDIA H200"
        with pytest.raises(StudyError, match="all nodes must be of one kind") as why:
            there.answer(there.submit())
    assert f"a worker has {ours}, others have NVIDIA H200" in str(why.value)


def test_a_policy_that_recurs_is_one_object_in_a_worker():
    """Programs are compiled once for each object."""
    first, second = (pickle.dumps(Policy(name, whittle_at)) for name in ("a", "b"))
    assert cluster._policy(first) is cluster._policy(bytes(bytearray(first)))
    assert cluster._policy(first) is not cluster._policy(second)


@pytest.mark.slow
def test_gpus_are_used_of_a_ray_that_is_left_as_it_is():
    """Ray takes our word for two GPUs; JAX finds none, so the numbers are a processor's."""
    import ray

    how: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": "ERROR",
        "log_to_driver": False,
    }
    ray.init("local", num_cpus=1, num_gpus=2, **how)
    try:
        results = run(SHORT, batch=BATCH, ray="local")
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert same(results, run(SHORT))
    assert results.provenance is not None
    assert results.provenance.workers == 2


# ---------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("address", ["", "nowhere", "host:0", "host:99999", "a b:1", "http://x:1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(StudyError, match="must be auto, local or HOST:PORT, got"):
        run(SHORT, ray=address)


def test_where_nobody_listens(unused_port):
    with pytest.raises(UnreachableError, match=r"no Ray can be reached: .*refused"):
        run(SHORT, ray=f"127.0.0.1:{unused_port}")


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that is kept and at which nobody listens."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield int(found.getsockname()[1])


# ---------------------------------------------------------------------------------- the end of it


@pytest.mark.slow
def test_a_cluster_that_goes_away(nodes, whole, tmp_path, monkeypatch):
    """The last test with these nodes."""
    monkeypatch.setattr(cluster, "_GONE_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.2)
    steps = []

    def progress(_: int) -> None:
        steps.append(1)
        if len(steps) == 6:
            nodes.kill_head()

    with pytest.raises(UnreachableError, match="the cluster is gone"):
        run(
            replace(LONG, trials=10**8),
            progress,
            batch=BATCH,
            ray=nodes.address,
            checkpoint=tmp_path,
        )
    assert (tmp_path / "checkpoint" / "point-1.npz").exists()
