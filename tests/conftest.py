"""What all tests share: examples that repeat, and programs that compile fast.

Hypothesis draws the same examples in every run, so a failure repeats, however slow the machine.

Compiling is most of the time of the default suite, so it compiles with less effort than XLA makes
by default; the programs and their random numbers are the same. Commands that tests start inherit
this. The slow tests run long enough to gain from the usual effort, so they have it. Whoever sets
XLA_FLAGS, even to nothing, decides instead. Nothing compiled goes into the user's cache.

Where Ctrl-C is ignored, as in a job that a shell runs in the background, tests and the programs
that they start heed it all the same.

A Ray that tests start is theirs alone: it asks for a token that is made up here.
"""

import gc
import os
import secrets
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import shapes

LESS_EFFORT = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything imports JAX, which reads the flags once, or rmab, which is checked."""
    shapes.install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # which programs would inherit
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", LESS_EFFORT)
    os.environ.setdefault("RMAB_CACHE", "off")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="module", autouse=True)
def _left_open() -> Iterator[None]:
    """What a module leaves open is told of it, not of the test that is on when garbage is found.

    What is left after it, mostly compiled programs, is not looked through again: that would take
    seconds for every module.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_lines_of_progress() -> Iterator[None]:
    """However busy the machine, a command says only what it has to say."""
    from rmab.cli import console

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "_LINE_SECONDS", 1e6)
        yield
