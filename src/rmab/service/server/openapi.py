"""OpenAPI 3.1 document of one federation: every route, status code and shape.

`openapi.json` has it in a short form that is written out here:

    "$word"                  the meaning of that word: a schema of `words`, or a value of this
                             federation
    "=Name"                  a reference to one of `schemas`
    {"keys": {...}}          an object of exactly these keys
    {"list": x, "length": n} a list, of n entries where that is said
    {"each": word}           a list with one entry for each arm, as `arm` has it

Shapes are exact: an upload's counts are nested lists of just the sizes that this federation's arms
have. Rules that no schema can state, that counts must be possible and never fall, are in
docs/protocol.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from rmab.protocol.checks import MAX_WHOLE
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.shape import PROTOCOL
from rmab.protocol.uploads import most_bytes
from rmab.service.server.page import ADDRESSES, ASSETS

__all__ = ["document"]

Schema = dict[str, Any]

# Operations and schemas of servers that are told counts, and of those that learn sums alone.
_CLEAR = ("POST /v1/uploads", "Upload")
_MASKED = ("POST /v1/masked", "Masked")
_FORGETTING = "DELETE /v1/agents/{name}/counts"  # not out of sums that were opened or released


def document(federation: Federation, *, open: bool = False) -> Schema:
    """Return the document as JSON has it. open: anybody may view."""
    template, writer = _template(), _Writer(federation, open)
    paths: Schema = {}
    other_mode = {
        *(_CLEAR if federation.masks else _MASKED),
        "Privacy" if federation.privacy is None else _FORGETTING,
    }
    for route, operation in template["operations"].items():
        if route in other_mode:
            continue
        method, path = route.split(" ")
        paths.setdefault(path, {})[method.lower()] = writer.operation(method, operation)
    for path, asset in ADDRESSES.items():
        page = {
            "name": "get" + asset.title().replace(".", ""),
            "for": "viewer",
            "about": "The page.",
            "answers": {"200": ["done", "$text", ASSETS[asset].partition(";")[0]]},
            "refusals": [401, 503],
        }
        paths[path] = {"get": writer.operation("GET", page)}
    schemas = {
        name: writer.full(short)
        for name, short in template["schemas"].items()
        if name not in other_mode
    }
    if federation.privacy is not None:
        for name in ("Status", "Overview"):
            schemas[name]["properties"]["privacy"] = writer.full("=Privacy")
            schemas[name]["required"].append("privacy")
    schemas["Agent"]["properties"]["owner"] = writer.full("$name")  # where it is another name
    if federation.survey:
        schemas["Round"]["properties"]["survey"] = {"const": federation.survey}
        schemas["Round"]["required"].append("survey")
    if federation.weights:  # of agents; admins and viewers have none
        schemas["Agent"]["properties"]["weight"] = writer.full("$number")
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
            "securitySchemes": template["securitySchemes"],
            "responses": {
                f"Refused{code}": writer.refusal(code, about)
                for code, about in template["refusals"].items()
            },
            "schemas": schemas,
        },
    }


def _with_keys(short: Schema, more: Schema) -> Schema:
    """An object of these keys as well."""
    return {"keys": short["keys"] | more}


@cache
def _template() -> Schema:
    found: Schema = json.loads(files(__package__).joinpath("openapi.json").read_bytes())
    return found


class _Writer:
    """Writes out the short form for one federation."""

    def __init__(self, federation: Federation, open: bool) -> None:
        shape = federation.shape
        self._open = open
        self._arms = tuple(zip(federation.arms, shape.kinds_by_arm, strict=True))
        self._most_bytes = most_bytes(shape)
        self._hides_plays = federation.budget is not None
        self._words: Mapping[str, Any] = {
            **_template()["words"],
            "largest": MAX_WHOLE,
            "PROTOCOL": PROTOCOL,
            "federation_name": federation.name,
            "policy_name": federation.policy,
            "K": shape.plays,
            "G": shape.gaps,
        }

    def full(self, short: Any) -> Any:
        """A schema, or a part of one, written out."""
        match short:
            case str() if short.startswith("$"):
                return self.full(self._words[short[1:]])
            case str() if short.startswith("="):
                return {"$ref": f"#/components/schemas/{short[1:]}"}
            case {"keys": keys}:
                return {
                    "type": "object",
                    "properties": self.full(keys),
                    "required": list(keys),
                    "additionalProperties": False,
                }
            case {"list": items, "length": length}:
                n = self.full(length)
                return {"type": "array", "items": self.full(items), "minItems": n, "maxItems": n}
            case {"list": items}:
                return {"type": "array", "items": self.full(items)}
            case {"each": word}:
                return self._each(word)
            case dict():
                return {key: self.full(value) for key, value in short.items()}
            case list():
                return [self.full(value) for value in short]
        return short

    def _each(self, word: str) -> Schema:
        """A list with one entry for each arm."""
        schemas = [self._arm(word, arm, kinds) for arm, kinds in self._arms]
        N = len(schemas)
        if all(schema == schemas[0] for schema in schemas):
            return {"type": "array", "items": schemas[0], "minItems": N, "maxItems": N}
        return {
            "type": "array",
            "prefixItems": schemas,
            "items": False,
            "minItems": N,
            "maxItems": N,
        }

    def _arm(self, word: str, known: KnownArm, kinds: int) -> Any:
        arm = _template()["arm"]
        estimate = arm["two_states" if known.states == 2 else "more_states"]
        if known.action_dependent:
            estimate = _with_keys(estimate, {"passive": estimate})
        # Arms that are as most are have fewer keys, as they had before there were others.
        unlike = {
            "reward_passive": known.pays_when_idle,
            "observed": known.kind.fully_observed,
            "action_dependent": known.action_dependent,
        }
        if any(unlike.values()):
            told = {key: arm[key] for key in unlike}
            shown = {key: arm[key] for key, differs in unlike.items() if differs}
            arm = {
                **arm,
                "known": _with_keys(arm["known"], told),
                "shown": _with_keys(arm["shown"], shown),
            }
        if self._hides_plays:
            unknown = {"plays": "$no_count", "share": "$no_number"}
            arm = {**arm, "shown": _with_keys(arm["shown"], unknown)}
        before = self._words
        self._words = {
            **before,
            "S": known.states,
            "C": kinds,
            "when": known.observed,
            "controlled": known.action_dependent,
            "never": {"type": "null"} if known.kind.fully_observed else "$number",
            "estimate": estimate,
        }
        try:
            return self.full({**arm, "estimate": estimate}[word])
        finally:
            self._words = before

    def operation(self, method: str, short: Schema) -> Schema:
        """One method of one path."""
        always = {421} if method == "GET" else {403, 421}
        security = _template()["security"][short["for"]]
        if self._open and short["for"] == "viewer":
            security = [{}, *security]
        responses = {code: self._answer(answer) for code, answer in short["answers"].items()}
        for code in sorted({*short["refusals"], *always}):
            responses[str(code)] = {"$ref": f"#/components/responses/Refused{code}"}
        found = {
            "operationId": short["name"],
            "summary": short["about"].replace("{most_bytes}", str(self._most_bytes)),
            "security": security,
            "responses": responses,
        }
        if "parameters" in short:
            found["parameters"] = self.full(short["parameters"])
        if "body" in short:
            found["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": self.full(short["body"])}},
            }
        return found

    def _answer(self, answer: Any) -> Schema:
        """Return an answer of a description, a schema and a media type, as far as there are any."""
        if isinstance(answer, str):
            return {"description": answer}
        about, schema, *media = answer
        kind = media[0] if media else "application/json"
        return {"description": about, "content": {kind: {"schema": self.full(schema)}}}

    def refusal(self, code: str, about: str) -> Schema:
        """Return a refusal, with the header that it needs."""
        answer = self._answer([about, "=Error"])
        headers = {"401": "WWW-Authenticate", "429": "Retry-After", "503": "Retry-After"}
        if code in headers:
            text = self.full("$text")
            answer["headers"] = {headers[code]: {"required": True, "schema": text}}
        return answer
