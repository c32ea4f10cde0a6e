"""Environments for agents of other libraries: Gymnasium's, and PettingZoo's for several agents.

    import gymnasium
    import rmab.envs

    env = gymnasium.make("rmab/Channels-v0", study="study.toml")

`rmab/Channels-v0` and `rmab/Arms-v0` are registered when this package is imported. The states in
them are those of the engine's trials, so `evaluate` can lay the rewards of any callable beside the
engine's policies, trial by trial. The environments need neither JAX nor SciPy; `evaluate` runs the
engine. docs/envs.md has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmab.errors import how_to_install

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

for _name, _class in (("rmab/Channels-v0", "ChannelsEnv"), ("rmab/Arms-v0", "ArmsEnv")):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, f"rmab.envs.arms:{_class}")


def __getattr__(name: str) -> Any:
    if name not in ("as_policy", "evaluate"):
        raise AttributeError(f"module 'rmab.envs' has no attribute {name!r}")
    from rmab.envs import evaluation  # which needs the engine

    return getattr(evaluation, name)
