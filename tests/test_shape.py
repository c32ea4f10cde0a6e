"""The shape of the source: it is put together from parts, and its walks do not grow unnoticed.

A walk that grew with good reason is kept by `make shape ARGS=--keep`.
"""

import json

import pytest

from benchmarks import shape


@pytest.fixture(scope="module")
def found():
    return shape.shape()


@pytest.fixture(scope="module")
def walked():
    return shape.walks()


KEPT = json.loads(shape.KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("measure", KEPT)
def test_no_walk_has_grown_by_a_tenth(walked, measure):
    assert walked[measure] <= 1.1 * KEPT[measure]


def test_a_policy_is_five_parts_that_nobody_tells_apart(found):
    assert found["fields of Policy"] == 5
    assert found["isinstance(..., ...Rule) outside the rules"] == 0


def test_functions_have_at_most_eight_parameters(found):
    assert found["most parameters of a function"] <= 8, found["... which is"]


def test_few_class_names_stand_in_several_modules(found):
    assert found["class names in several modules"] <= 10


def test_a_closure_follows_imports_inside_functions():
    names = {module.name for module in shape.closure("rmab.policies.constraint")}
    assert {"rmab.policies.constraint", "rmab.linalg"} <= names
    assert "rmab.engine.program" not in names
    assert "rmab.model.arms" in {m.name for m in shape.closure("rmab.studies.study")}
