"""schemathesis on our own openapi.json: whatever it makes up, the answers are those that the file promises."""

import pytest
import requests
from server import needs_model

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = needs_model
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def operations(server):
    api = schemathesis.openapi.from_dict(requests.get(server.url + "/openapi.json", timeout=10).json())
    return [result.ok() for result in api.get_all_operations()]


def ask(case, server):
    if case.path == "/pause":
        return  # would stop the session's server
    if isinstance(case.body, dict):  # valid bodies may ask for long answers
        for key in LIMITS:
            if isinstance(case.body.get(key), int) and case.body[key] > 4:
                case.body[key] = 4
        if case.path.startswith("/v1/") and not any(isinstance(case.body.get(k), int) for k in LIMITS):
            case.body["max_output_tokens" if case.path == "/v1/responses" else "max_tokens"] = 4
        if isinstance(case.body.get("n"), int) and case.body["n"] > 4:
            case.body["n"] = 4
    response = case.call(base_url=server.url, timeout=60)
    # Not positive_data_acceptance (ids and names that this model lacks are refused, and no schema can say so), nor
    # negative_data_rejection (unknown parameters are taken, with a warning). A 501 must stand in the file to conform.
    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
    if response.status_code != 501:
        checks.append(not_a_server_error)
    case.validate_response(response, checks=checks)


def test_promises(server):
    asked = operations(server)
    assert len(asked) > 10
    for operation in asked:

        @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def keeps_its_promise(case):
            ask(case, server)

        keeps_its_promise()
