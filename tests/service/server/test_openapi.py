"""The OpenAPI document says what the server does: schemathesis asks for everything in it."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rmab.privacy.settings import Privacy
from rmab.protocol.config import Federation, KnownArm
from rmab.service.http.telemetry import Log
from rmab.service.server.identity import Access
from rmab.service.server.metrics import Metrics
from rmab.service.server.openapi import document
from rmab.service.server.rounds import Rounds
from rmab.service.server.routes import _ServerRoutes
from rmab.service.server.unmasking import HelperAccess
from tests.service.support.serving import PATIENCE, Flat, served, spectrum

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A server with an agent that has reported, an admin and a viewer; it is not open, and nobody
    waits long for a round."""
    with pytest.MonkeyPatch.context() as patch:
        newer = Rounds.newer
        patch.setattr(Rounds, "newer", lambda self, a, r, wait: newer(self, a, r, min(wait, 0.01)))
        with served(tmp_path_factory.mktemp("served"), spectrum(), open=False) as running:
            agent = running.agent("radio")
            agent.episode()
            people = {role: running.enroll(role, role) for role in ("admin", "viewer")}
            yield running, people | {"agent": agent.token}


def mixed() -> Federation:
    """Arms of two and three states."""
    arms = (KnownArm(2, (0.0, 1.0)), KnownArm(3, (0.0, 0.5, 1.0)))
    return Federation("mixed", 1, arms, policy="fedtswi-gap", options={"gaps": 8})


def of_every_kind() -> Federation:
    """Arms that are always observed, action-dependent, or pay when they are left alone."""
    arms = (
        KnownArm(2, (0.0, 1.0)),
        KnownArm(2, (0.0, 1.0), (0.5, 0.0)),
        KnownArm(3, (0.0, 0.5, 1.0), action_dependent=True),
        KnownArm(2, (0.0, 1.0), (0.5, 0.0), "always", action_dependent=True),
    )
    return Federation("kinds", 1, arms)


def operations(schema: Any) -> list[Any]:
    """All that can be asked; none may be in error."""
    return [found.ok() for found in schema.get_all_operations()]


def needed(operation: Any) -> str | None:
    """The role that may ask for it; None: anybody may."""
    security = operation.definition.raw["security"]
    return next(iter(security[0])) if security else None


@pytest.mark.parametrize(
    ("privacy", "refused"),
    [
        (None, {("/v1/masked", "post")}),
        (
            Privacy("http://127.0.0.1:9"),
            {("/v1/uploads", "post"), ("/v1/agents/{name}/counts", "delete")},
        ),
        (
            Privacy(epsilon=1.0),
            {("/v1/masked", "post"), ("/v1/agents/{name}/counts", "delete")},
        ),
    ],
)
def test_every_route_is_in_the_document_and_nothing_else(tmp_path, privacy, refused):
    """refused: those of the other mode, which take nothing."""
    federation = spectrum(privacy=privacy)
    log, metrics = Log(), Metrics()
    inside = Rounds(
        federation,
        str(tmp_path / "x.db"),
        planner=Flat(federation),
        log=log,
        metrics=metrics,
        helper=HelperAccess("token"),
    )
    routes = _ServerRoutes(inside, Access(inside, open=True, log=log), metrics).all()
    there = {
        (route.path, method.lower())
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    written = {
        (path, method)
        for path, methods in document(federation)["paths"].items()
        for method in methods
    }
    assert there - refused == written
    assert refused <= there


@pytest.mark.parametrize(
    "federation", [spectrum(), spectrum(policy="fedtswi-gap"), mixed(), of_every_kind()]
)
def test_shapes_are_exact(federation):
    upload = document(federation)["components"]["schemas"]["Upload"]["properties"]
    counts = upload["counts"]
    each = counts.get("prefixItems") or [counts["items"]] * counts["minItems"]
    assert len(each) == len(federation.arms) == counts["maxItems"]
    kinds = federation.shape.kinds_by_arm
    for arm, C, schema in zip(federation.arms, kinds, each, strict=True):
        sizes = []
        while schema["type"] == "array":
            assert schema["minItems"] == schema["maxItems"]
            sizes.append(schema["minItems"])
            schema = schema["items"]
        assert sizes == [C, arm.states, arm.states]
    assert kinds == [
        2 if arm.observed == "always" else federation.gaps + 1 for arm in federation.arms
    ]


def test_what_is_said_of_arms_of_every_kind_is_what_the_document_says(tmp_path):
    """The round, an upload, and what the page is told, of a server of such arms."""
    federation = replace(of_every_kind(), arms=of_every_kind().arms[:2] + of_every_kind().arms[3:])
    schemas = document(federation)["components"]["schemas"]
    with served(tmp_path, federation) as running:
        agent = running.agent("one")
        body = agent.client.get("/v1/round").content
        agent.fetch()
        while not agent.player.over:
            agent.player.look([1])
            agent.player.observe(agent.player.choose().tolist(), [1])
        upload = agent.body(agent.player.upload(1))
        assert agent.send(upload).status_code == 201
        arms = running.client().get("/v1/overview").json()["arms"]
    for schema, found in (
        (schemas["Round"], json.loads(body)),
        (schemas["Upload"], json.loads(upload)),
        # The planner of the tests has no estimates of what plays change.
        (schemas["Overview"]["properties"]["arms"], [arm | {"estimate": None} for arm in arms]),
    ):
        jsonschema_rs.validate(schema, found)
    assert "weight" not in schemas["Agent"]["properties"]
    weighed = document(replace(federation, weights={"one": 2.0}))["components"]["schemas"]["Agent"]
    assert "weight" in weighed["properties"].keys() - set(weighed["required"])
    _, both = schemas["Status"]["properties"]["arms"]["prefixItems"][2]["anyOf"]  # null, or
    assert both["properties"]["passive"]["properties"].keys() == {"p01", "p11"}


def test_references_lead_somewhere():
    whole = document(mixed())
    for path in re.findall(r"'\$ref': '#/([^']+)'", str(whole)):
        found: Any = whole
        for part in path.split("/"):
            found = found[part]
        assert isinstance(found, dict)


def try_all(
    operation: Any, examples: int, ask: Any, mode: GenerationMode = GenerationMode.POSITIVE
) -> None:
    """Ask for an operation in many ways that its document allows, or does not."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def trial(case):
        ask(case)

    trial()


def test_the_server_does_what_its_document_says(live):
    running, tokens = live
    told = running.client().get("/openapi.json").json()
    assert told == document(running.federation)
    found = operations(schemathesis.openapi.from_dict(told))
    assert len(found) == sum(len(methods) for methods in told["paths"].values())
    for operation in found:
        role = needed(operation) or "agent"
        headers = {"Authorization": f"Bearer {tokens[role]}"}

        def ask(case, headers=headers):
            case.call_and_validate(
                base_url=running.url, headers=headers, checks=CHECKS, timeout=PATIENCE
            )

        takes = operation.definition.raw.keys() & {"parameters", "requestBody"}
        try_all(operation, 60 if takes else 3, ask)
        if takes:
            try_all(operation, 60, ask, GenerationMode.NEGATIVE)
    counted = running.client(tokens["viewer"]).get("/metrics").text
    for route, codes in (("/v1/uploads", (422,)), ("/v1/round", (200, 204, 422))):
        for code in codes:
            assert f'rmab_http_requests_total{{code="{code}",route="{route}"}}' in counted
    assert not [event for event in running.events() if event["level"] == "error"]


def test_an_open_server_says_so_in_its_document():
    closed, opened = (document(spectrum(), open=is_open)["paths"] for is_open in (False, True))
    for path, operations_ in closed.items():
        for method, operation in operations_.items():
            there = opened[path][method]["security"]
            shown = any("viewer" in one for one in operation["security"])
            assert there == [*([{}] if shown else []), *operation["security"]]


def test_nobody_gets_in_without_a_credential(live):
    running, tokens = live
    for operation in operations(schemathesis.openapi.from_dict(document(running.federation))):
        role = needed(operation)
        if role is None:
            continue
        wrong = [token for other, token in tokens.items() if other != role]

        def ask(case, wrong=wrong):
            for headers in ({}, *({"Authorization": f"Bearer {token}"} for token in wrong)):
                answer = case.call(base_url=running.url, headers=headers, timeout=PATIENCE)
                assert answer.status_code == 401

        try_all(operation, 5, ask)


def test_a_round_has_its_survey_where_there_is_one():
    private = spectrum(draws="own", schedule="linear", privacy=Privacy(epsilon=8.0, survey=6))
    told = document(private)["components"]["schemas"]["Round"]
    assert told["properties"]["survey"] == {"const": 6}
    assert "survey" in told["required"]
    assert "survey" not in document(spectrum())["components"]["schemas"]["Round"]["properties"]
