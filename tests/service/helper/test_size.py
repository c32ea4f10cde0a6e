"""Size of a helper's code, which an outsider must be able to read, and of an agent's."""

from benchmarks.shape import closure

SOLVERS = ("jax", "jaxlib", "scipy", "pandas", "matplotlib")


def loads(module, package):
    """Whether a module imports the package anywhere."""
    return any(name.partition(".")[0] == package for name in module.imports())


def test_a_helper_is_small_enough_to_be_read():
    found = closure("rmab.service.helper.process")
    assert not [each.name for each in found if each.name.startswith("rmab.service.server")]
    assert not [each.name for each in found for solver in SOLVERS if loads(each, solver)]
    assert len(found) <= 25, [each.name for each in found]
    assert sum(each.lines for each in found) <= 5000


def test_an_agent_stays_small_and_has_no_solver():
    found = closure("rmab.service.agent.agent")
    names = [each.name for each in found]
    assert not [name for name in names if name.startswith(("rmab.service.server", "rmab.engine"))]
    assert not [each.name for each in found for solver in SOLVERS[1:] if loads(each, solver)]
    # For arrays of JAX only, which an agent has none of.
    generic = {"rmab.arrays", "rmab.linalg", "rmab.policies.constraint"}
    assert {each.name for each in found if loads(each, "jax")} <= generic
    assert sum(each.lines for each in found) <= 7500
