"""Environments for agents of other libraries: Gymnasium's, and PettingZoo's for several agents.

    import gymnasium
    import rmab.envs

    env = gymnasium.make("rmab/Channels-v0", study="study.toml")

`rmab/Channels-v0`, `rmab/Arms-v0` and environments of other packages (entry points of the group
`rmab.environments`) are registered when this package is imported. The states in rmab's are those of
the engine's trials, so `evaluate` can lay what any callable earns beside the engine's policies,
trial by trial. They need neither JAX nor SciPy; `evaluate` runs the engine. docs/envs.md has
examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmab.errors import how_to_install
from rmab.extensions import Catalogue

try:
    import gymnasium
    import pettingzoo  # noqa: F401 - to say what is missing before anything else does
except ImportError as missing:
    raise ImportError(
        f"rmab.envs needs Gymnasium and PettingZoo ({missing}); {how_to_install('envs')}"
    ) from missing

from rmab.envs.arms import ArmsEnv, ChannelsEnv
from rmab.envs.parallel import ParallelArmsEnv

if TYPE_CHECKING:
    from rmab.envs.evaluation import as_policy, evaluate

__all__ = ["ArmsEnv", "ChannelsEnv", "ParallelArmsEnv", "as_policy", "evaluate", "parallel_env"]

parallel_env = ParallelArmsEnv  # as PettingZoo's environments call it

_OWN = {"rmab/Channels-v0": "rmab.envs.arms:ChannelsEnv", "rmab/Arms-v0": "rmab.envs.arms:ArmsEnv"}
ENVIRONMENTS: Catalogue[Callable[..., Any]] = Catalogue(_OWN, "rmab.environments")


def _maker(name: str) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        environment = ENVIRONMENTS[name]
        with ENVIRONMENTS.used(name):
            return environment(**settings)

    return make


for _name in ENVIRONMENTS:
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _OWN.get(_name, _maker(_name)))


def __getattr__(name: str) -> Any:
    if name not in ("as_policy", "evaluate"):
        raise AttributeError(f"module 'rmab.envs' has no attribute {name!r}")
    from rmab.envs import evaluation  # which needs the engine

    return getattr(evaluation, name)
