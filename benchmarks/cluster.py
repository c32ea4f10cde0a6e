"""What a Ray cluster costs: cores of this machine as workers, and what follows for many more.

Workers are compared with the threads of one process on the same study, after compilation, trials a
second by the clock. The cost of a block is the processor time that the process which merges spends
on it, in all its threads: to submit it, to fetch its sums and to add them up. It is measured with
blocks of one batch each.

With W workers, blocks that take t seconds and c seconds a block for merging, the workers finish
W / t blocks a second, and 1 / c can be merged. So the efficiency is min(1, t / (W c)). Blocks are
made to take max(1 s, W x 20 ms), hence t / (W c) = 20 ms / c for 50 workers and more.

    python -m benchmarks.cluster            a table
    python -m benchmarks.cluster --json     the same as one JSON object
    python -m benchmarks.cluster --quick    fewer trials
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import rmab
from rmab.engine import cluster as engine
from rmab.engine.cluster import Cluster
from rmab.studies.checkpoint import Job
from rmab.studies.run import provenance, run_job
from rmab.studies.sweep import Sweep

__all__ = ["measured"]

STUDY = rmab.Study(
    rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6]),
    agents=4,
    plays=2,
    policies=["fedtswi", "whittle"],
)
BATCH = 1024
MANY = 1000  # workers that are spoken of

Say = Callable[[str], None]


def seconds(trials: int, **how: Any) -> float:
    """Of a run."""
    begun = time.perf_counter()
    job = Job(Sweep(replace(STUDY, trials=trials), {}), how.pop("made"))
    run_job(job, batch=BATCH, **how)
    return time.perf_counter() - begun


@contextmanager
def workers(count: int) -> Iterator[Cluster]:
    """A Ray of so many cores, with everything compiled."""
    import ray

    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # they become Ray's programs
    ray.init(
        "local",
        num_cpus=count,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        with Cluster("local") as found:
            seconds(4 * count * BATCH, made=provenance(found), workers=found)
            yield found
    finally:
        ray.shutdown()


@contextmanager
def short_blocks() -> Iterator[None]:
    """Blocks of one batch."""
    before = engine._BLOCK_SECONDS, engine._MERGE_SECONDS
    engine._BLOCK_SECONDS = engine._MERGE_SECONDS = 0.0
    try:
        yield
    finally:
        engine._BLOCK_SECONDS, engine._MERGE_SECONDS = before


def block_cost(found: Cluster, blocks: int) -> tuple[float, float]:
    """Processor seconds of this process for a block, and bytes of its sums."""
    sizes = []
    answer = Cluster.answer

    def counted(self: Cluster, task: Any) -> Any:
        sums = (found := answer(self, task)).sums
        if sums is not None:
            parts = [x for part in sums.parts.values() for four in part.values() for x in four]
            sizes.append(sum(x.nbytes for x in (*sums.joint, *parts)))
        return found

    with short_blocks():
        Cluster.answer = counted  # type: ignore[method-assign]  # put back below
        try:
            begun = time.process_time()
            seconds(blocks * BATCH, made=provenance(found), workers=found)
            spent = time.process_time() - begun
        finally:
            Cluster.answer = answer  # type: ignore[method-assign]  # as it was
    return spent / len(sizes), sum(sizes) / len(sizes)


def measured(quick: bool = False, say: Say = print) -> dict[str, Any]:
    """Trials a second by threads and by workers, the cost of a block, and what follows."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    rounds, trials = (1, 8 * BATCH) if quick else (5, 48 * BATCH)
    counts = (1, 2)
    rate: dict[str, dict[int, float]] = {"threads": {}, "workers": {}}
    costs = []
    for count in counts:
        made = provenance(None)
        seconds(4 * count * BATCH, made=made, threads=count)  # which compiles
        with workers(count) as found:
            say(f"{count} of each")
            took: dict[str, list[float]] = {"threads": [], "workers": []}
            for _ in range(rounds):
                took["threads"].append(seconds(trials, made=made, threads=count))
                took["workers"].append(seconds(trials, made=provenance(found), workers=found))
                costs.append(block_cost(found, trials // BATCH))
            for kind, each in took.items():
                rate[kind][count] = trials / min(each)
    cost, size = min(costs)
    last = counts[-1]
    return {
        "batch": BATCH,
        "trials": trials,
        "rounds": rounds,
        "trials_per_second": rate,
        "against_threads": {n: rate["workers"][n] / rate["threads"][n] for n in counts},
        "efficiency_threads": rate["threads"][last] / (last * rate["threads"][1]),
        "efficiency_workers": rate["workers"][last] / (last * rate["workers"][1]),
        "seconds_per_batch": BATCH / rate["workers"][1],
        "merge_seconds_per_block": cost,
        "bytes_per_block": size,
        "many": {
            "workers": MANY,
            "seconds_per_block": max(engine._BLOCK_SECONDS, engine._MERGE_SECONDS * MANY),
            "busy_merging": cost / engine._MERGE_SECONDS,
            "efficiency": min(1.0, engine._MERGE_SECONDS / cost),
        },
    }


def main() -> int:
    """Print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    options = parser.parse_args()
    found = measured(options.quick, lambda text: print(text, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(found))
        return 0
    for kind, rates in found["trials_per_second"].items():
        for count, rate in rates.items():
            print(f"{count} {kind:8}  {rate:10,.0f} trials/s")
    for kind in ("threads", "workers"):
        print(f"efficiency of 2 {kind}: {found[f'efficiency_{kind}']:.3f}")
    cost, many = found["merge_seconds_per_block"], found["many"]
    print(f"a block: {1e3 * cost:.2f} ms to merge, {found['bytes_per_block'] / 1e3:.0f} kB")
    print(
        f"{MANY} workers: blocks of {many['seconds_per_block']:.0f} s, merging busy "
        f"{100 * many['busy_merging']:.0f} %, efficiency {many['efficiency']:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
