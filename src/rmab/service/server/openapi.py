"""The OpenAPI 3.1 document of one federation: every route, status code and shape.

Shapes are exact: an upload's counts are nested lists of just the sizes that this federation's arms
have. What a schema cannot say, that counts must be possible and never fall, is in docs/protocol.md.
"""

from __future__ import annotations

from typing import Any

from rmab.federation.checks import LARGEST
from rmab.federation.config import Federation
from rmab.federation.messages import PROTOCOL, most_bytes
from rmab.service.server.page import ASSETS, address

__all__ = ["document"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST}
_POSITIVE: Schema = {"type": "integer", "minimum": 1, "maximum": LARGEST}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
_ROLE: Schema = {"enum": ["agent", "admin"]}
_TIME: Schema = {"type": "number", "description": "seconds since 1970, UTC"}
_NO_TIME: Schema = {"type": ["number", "null"], "description": "seconds since 1970, UTC, or null"}
_NO_NUMBER: Schema = {"type": ["number", "null"]}
_NO_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}

_REFUSALS = {
    401: "no credential, an unknown, a revoked one, or one of the other role",
    404: "nothing under this path, or no such agent",
    405: "not with this method",
    408: "the body did not arrive in time",
    409: "it contradicts what the server has",
    410: "a round that is closed or unknown; the answer has the open one",
    413: "the body is too large",
    415: "the body is not application/json",
    421: "a server on loopback was called by another name",
    422: "malformed, or not possible",
    503: "overload, or the database is away: try again after Retry-After seconds",
}


def document(federation: Federation) -> Schema:
    """The document, as JSON has it."""
    agent: list[Schema] = [{"agent": []}]
    admin: list[Schema] = [{"admin": []}, {"adminBrowser": []}]
    viewer: list[Schema] = [{}, *admin]  # anybody on loopback

    def operation(
        name: str,
        about: str,
        security: list[Schema],
        answers: dict[int, Any],
        refusals: tuple[int, ...] = (),
        **more: Any,
    ) -> Schema:
        responses = {str(code): answer for code, answer in answers.items()}
        for code in sorted({*refusals, 421}):
            responses[str(code)] = {"$ref": f"#/components/responses/Refused{code}"}
        return {
            "operationId": name,
            "summary": about,
            "security": security,
            "responses": responses,
            **more,
        }

    upload_answers = {
        201: _json("it was new and is committed", _ref("Received")),
        200: _json("an identical repeat of one that is committed", _ref("Received")),
    }
    paths: Schema = {
        "/v1/round": {
            "get": operation(
                "getRound",
                "The open round, if its number is above `after`; waits for one up to `wait` "
                "seconds. Whoever asks takes part in the round.",
                agent,
                {200: _json("the round", _ref("Round")), 204: _bare("none that is newer")},
                (401, 422, 503),
                parameters=[
                    _query("after", {**_COUNT, "default": 0}),
                    _query("wait", {"type": "number", "minimum": 0, "maximum": 30, "default": 0}),
                ],
            )
        },
        "/v1/uploads": {
            "post": operation(
                "postUpload",
                "Cumulative counts of one incarnation of the agent. Acknowledged is committed; a "
                f"repeat changes nothing. At most {most_bytes(federation.shape)} bytes.",
                agent,
                upload_answers,
                (401, 408, 409, 410, 413, 415, 422, 503),
                requestBody=_body(_ref("Upload")),
            )
        },
        "/v1/leave": {
            "post": operation(
                "postLeave",
                "The agent is not awaited until it fetches a round again.",
                agent,
                {200: _json("the open round", _object(round=_POSITIVE))},
                (401, 503),
            )
        },
        "/v1/status": {
            "get": operation(
                "getStatus",
                "The federation in numbers.",
                viewer,
                {200: _json("", _ref("Status"))},
                (401, 503),
            )
        },
        "/v1/overview": {
            "get": operation(
                "getOverview",
                "All that the page shows.",
                viewer,
                {200: _json("", _ref("Overview"))},
                (401, 503),
            )
        },
        "/v1/agents": {
            "get": operation(
                "getAgents",
                "All that were ever enrolled.",
                admin,
                {200: _json("", _object(agents=_list(_ref("Agent"))))},
                (401, 503),
            ),
            "post": operation(
                "postAgent",
                "Enrol an agent or an admin; the answer has the token, which is not kept.",
                admin,
                {201: _json("enrolled", _object(name=_NAME, role=_ROLE, token=_TEXT))},
                (401, 408, 409, 413, 415, 422, 503),
                requestBody=_body(
                    {
                        "type": "object",
                        "properties": {"name": _NAME, "role": {**_ROLE, "default": "agent"}},
                        "required": ["name"],
                        "additionalProperties": False,
                    }
                ),
            ),
        },
        "/v1/agents/{name}": {
            "delete": operation(
                "deleteAgent",
                "Revoke the credential of that name; what the agent gave stays.",
                admin,
                {204: _bare("revoked")},
                (401, 404, 503),
                parameters=[{"name": "name", "in": "path", "required": True, "schema": _NAME}],
            )
        },
        "/metrics": {
            "get": operation(
                "getMetrics",
                "Measures for Prometheus.",
                viewer,
                {200: _content("", "text/plain")},
                (401, 503),
            )
        },
        "/healthz": {
            "get": operation(
                "getHealth",
                "Whether the process answers.",
                [],
                {200: _json("it does", _object(status={"const": "alive"}))},
            )
        },
        "/readyz": {
            "get": operation(
                "getReady",
                "Whether the database answers and a round is open.",
                [],
                {200: _json("both", _object(status={"const": "ready"}, round=_POSITIVE))},
                (503,),
            )
        },
        "/openapi.json": {
            "get": operation(
                "getOpenapi", "This document.", [], {200: _json("", {"type": "object"})}
            )
        },
    }
    for asset, media_type in ASSETS.items():
        name = "get" + asset.title().replace(".", "")
        answer = {200: _content("", media_type.partition(";")[0])}
        paths[address(asset)] = {"get": operation(name, "The page.", viewer, answer, (401, 503))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"rmab federation {federation.name}",
            "version": str(PROTOCOL),
            "description": "One server and its agents; see docs/protocol.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "agent": {"type": "http", "scheme": "bearer"},
                "admin": {"type": "http", "scheme": "bearer"},
                "adminBrowser": {"type": "http", "scheme": "basic"},
            },
            "responses": {
                f"Refused{code}": _refusal(code, about) for code, about in _REFUSALS.items()
            },
            "schemas": _schemas(federation),
        },
    }


def _schemas(federation: Federation) -> Schema:
    states = federation.shape.states
    kinds = federation.shape.kinds
    estimate = _object(mean=_NUMBER, low=_NUMBER, high=_NUMBER)
    counts = [_grid(_COUNT, kinds, s, s) for s in states]
    plan_index = {
        "type": "object",
        "properties": {"kind": {"enum": ["index", "turns", "lookahead"]}},
        "required": ["kind"],
    }
    two = _object(p01=estimate, p11=estimate)
    more = _object(transitions=_list(_list(estimate)))
    estimates = [two if s == 2 else more for s in states]
    shown = [
        _object(
            states={"const": s},
            reward=_list(_NUMBER, s),
            estimate={"anyOf": [{"type": "null"}, one]},
            index={
                "anyOf": [
                    {"type": "null"},
                    _object(never=_NUMBER, by_state=_list(_list(_NUMBER), s)),
                ]
            },
            plays=_COUNT,
            share={"type": "number", "minimum": 0, "maximum": 1},
        )
        for s, one in zip(states, estimates, strict=True)
    ]
    common = {
        "federation": {"const": federation.name},
        "policy": {"const": federation.policy},
        "round": _POSITIVE,
        "limit": _POSITIVE,
        "uploads": _COUNT,
        "slots": _COUNT,
    }
    closed = {"enum": ["all", "deadline", None]}
    return {
        "Error": {
            "type": "object",
            "properties": {"error": _TEXT, "detail": _TEXT, "round": _POSITIVE},
            "required": ["error", "detail"],
        },
        "Upload": _object(
            protocol={"const": PROTOCOL},
            federation={"const": federation.name},
            incarnation={"type": "string", "pattern": "^[0-9a-f]{32}$"},
            sequence=_POSITIVE,
            round=_POSITIVE,
            slots=_COUNT,
            length=_COUNT,
            counts=_each(counts),
            visits=_each([_list(_COUNT, s) for s in states]),
        ),
        "Received": _object(
            status={"enum": ["new", "repeat"]}, sequence=_POSITIVE, round=_POSITIVE
        ),
        "Round": _object(
            protocol={"const": PROTOCOL},
            federation={"const": federation.name},
            agent=_NAME,
            round=_POSITIVE,
            episode=_object(slots=_POSITIVE, visits={"type": ["integer", "null"], "minimum": 1}),
            plays={"const": federation.plays},
            gaps={"const": federation.gaps},
            arms=_each([_object(states={"const": s}, reward=_list(_NUMBER, s)) for s in states]),
            plan=plan_index,
        ),
        "Status": _object(agents=_COUNT, live=_COUNT, arms=_each(estimates), **common),
        "Overview": _object(
            plays={"const": federation.plays},
            opened=_TIME,
            now=_TIME,
            deadline=_NUMBER,
            reference=_NO_NUMBER,
            arms=_each(shown),
            rewards=_list(_object(round=_POSITIVE, slots=_COUNT, reward=_NO_NUMBER)),
            agents=_list(_ref("Agent")),
            rounds=_list(
                _object(
                    round=_POSITIVE,
                    opened=_TIME,
                    closed=_NO_TIME,
                    reason=closed,
                    reports=_COUNT,
                    limit=_POSITIVE,
                )
            ),
            **common,
        ),
        "Agent": _object(
            name=_NAME,
            lane=_NO_COUNT,
            role=_ROLE,
            enrolled=_TIME,
            revoked=_NO_TIME,
            last_seen=_NO_TIME,
            episode=_NO_COUNT,
            uploads=_COUNT,
            refused=_COUNT,
            slots=_COUNT,
            reward=_NO_NUMBER,
            live={"type": "boolean"},
        ),
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**properties: Schema) -> Schema:
    """An object of exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema, length: int | None = None) -> Schema:
    sizes = {} if length is None else {"minItems": length, "maxItems": length}
    return {"type": "array", "items": items, **sizes}


def _grid(items: Schema, *lengths: int) -> Schema:
    """Nested lists of these lengths, the outermost first."""
    for length in reversed(lengths):
        items = _list(items, length)
    return items


def _each(schemas: list[Schema]) -> Schema:
    """A list with one entry for each arm."""
    if all(schema == schemas[0] for schema in schemas):
        return _list(schemas[0], len(schemas))
    length = len(schemas)
    return {
        "type": "array",
        "prefixItems": schemas,
        "items": False,
        "minItems": length,
        "maxItems": length,
    }


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _body(schema: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _bare(about: str) -> Schema:
    return {"description": about or "done"}


def _content(about: str, kind: str) -> Schema:
    return {"description": about or "done", "content": {kind: {"schema": _TEXT}}}


def _json(about: str, schema: Schema) -> Schema:
    return {"description": about or "done", "content": {"application/json": {"schema": schema}}}


def _refusal(code: int, about: str) -> Schema:
    answer = _json(about, _ref("Error"))
    headers = {401: "WWW-Authenticate", 503: "Retry-After"}
    if code in headers:
        answer["headers"] = {headers[code]: {"required": True, "schema": _TEXT}}
    return answer
