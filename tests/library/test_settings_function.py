"""The provider behind root squash, against FSx's own API shapes and a real HTTP server."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module

import boto3
import pytest
from botocore.stub import Stubber

from tests.support import ROOT

SYSTEM = "fs-0123456789abcdef0"
SQUASH = {"RootSquash": "65534:65534", "NoSquashNids": ["10.8.0.5@tcp"]}
UPDATE = {"FileSystemId": SYSTEM, "LustreConfiguration": {"RootSquashConfiguration": SQUASH}}


@pytest.fixture(scope="module")
def handler():
    """The module as Lambda loads it: its folder is the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "constructs/trainshed/provider"))
        yield import_module("handler")


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def client():
    return boto3.client("fsx", region_name="us-east-2", aws_access_key_id="x", aws_secret_access_key="x")


@pytest.fixture
def fsx(client):
    with Stubber(client) as stub:
        yield stub


@pytest.fixture
def answers():
    """A server that CloudFormation's pre-signed URL leads to, and what it was sent."""
    received: list[tuple[str, dict[str, str], dict[str, object]]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/answer?signature=a%2Fb", received
    server.shutdown()
    thread.join()
    server.server_close()


def event(kind: str = "Create", url: str = "http://unused", **more: object) -> dict[str, object]:
    properties = {"ServiceToken": "arn", "FileSystemId": SYSTEM, **SQUASH}
    return {
        "RequestType": kind, "ResponseURL": url, "StackId": "stack", "RequestId": "request",
        "LogicalResourceId": "RootSquash", "ResourceProperties": properties, **more,
    }  # fmt: skip


def action(status: str, hour: int = 12, reason: str | None = None):
    return {
        "AdministrativeActionType": "FILE_SYSTEM_UPDATE", "Status": status,
        "RequestTime": datetime(2026, 11, 1, hour, tzinfo=UTC),
        "TargetFileSystemValues": {"LustreConfiguration": {"RootSquashConfiguration": SQUASH}},
        **({"FailureDetails": {"Message": reason}} if reason else {}),
    }  # fmt: skip


def described(*actions: dict[str, object], squash: dict[str, object] | None = None):
    lustre = {"RootSquashConfiguration": squash} if squash else {}
    return {
        "FileSystems": [
            {"FileSystemId": SYSTEM, "LustreConfiguration": lustre, "AdministrativeActions": [*actions]}
        ]
    }


def accept(fsx: Stubber) -> None:
    fsx.add_response("update_file_system", {}, UPDATE)


def look(fsx: Stubber, *actions: dict[str, object], squash: dict[str, object] | None = None) -> None:
    fsx.add_response("describe_file_systems", described(*actions, squash=squash), {"FileSystemIds": [SYSTEM]})


def busy(fsx: Stubber) -> None:
    message = "Unable to perform the update: another update is in progress."
    fsx.add_client_error("update_file_system", "BadRequest", message, expected_params=UPDATE)


def run(handler, client, given: dict[str, object], clock: Clock | None = None):
    sent: list[tuple[str, str, str]] = []
    clock = clock or Clock()
    handler.root_squash(given, None, client=client, clock=clock, send=lambda _, *rest: sent.append(rest))
    (answer,) = sent
    return answer


def test_it_waits_until_the_update_is_over(handler, client, fsx):
    clock = Clock()
    accept(fsx)
    look(fsx, action("PENDING"))
    look(fsx, action("IN_PROGRESS"))
    look(fsx, action("COMPLETED"), squash=SQUASH)
    assert run(handler, client, event(), clock) == ("SUCCESS", "", f"{SYSTEM}/root-squash")
    assert clock.now == 2 * handler.PAUSE_SECONDS
    fsx.assert_no_pending_responses()


def test_it_tries_again_while_another_update_is_in_progress(handler, client, fsx):
    """Associations may still be in the making."""
    for _ in range(3):
        busy(fsx)
    accept(fsx)
    look(fsx, action("COMPLETED"), squash=SQUASH)
    assert run(handler, client, event())[0] == "SUCCESS"
    fsx.assert_no_pending_responses()


def test_a_failed_update_says_why(handler, client, fsx):
    accept(fsx)
    look(fsx, action("FAILED", reason="NID 10.8.0.5@tcp is not in the VPC"))
    status, reason, _ = run(handler, client, event())
    assert status == "FAILED"
    assert "NID 10.8.0.5@tcp is not in the VPC" in reason


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_latest_update_counts(handler, client, fsx, newest_first: bool):
    """FSx keeps a list of past updates, in no promised order."""
    accept(fsx)
    actions = [action("IN_PROGRESS", hour=12), action("FAILED", hour=9, reason="long ago")]
    look(fsx, *(actions if newest_first else reversed(actions)))
    look(fsx, action("COMPLETED", hour=12), action("FAILED", hour=9, reason="long ago"), squash=SQUASH)
    assert run(handler, client, event())[0] == "SUCCESS"


def test_what_is_set_already_is_a_success(handler, client, fsx):
    """FSx starts no action then; the last one may be an old failure."""
    accept(fsx)
    look(fsx, action("FAILED", hour=9, reason="long ago"), squash=SQUASH)
    assert run(handler, client, event("Update", PhysicalResourceId="kept"))[::2] == ("SUCCESS", "kept")


def test_other_clients_to_spare_are_another_setting(handler, client, fsx):
    accept(fsx)
    look(fsx, action("FAILED", reason="too many NIDs"), squash={**SQUASH, "NoSquashNids": []})
    assert run(handler, client, event("Update", PhysicalResourceId="kept"))[0] == "FAILED"


def test_it_gives_up_before_lambda_does(handler, client, fsx):
    accept(fsx)
    clock = Clock()
    for _ in range(handler.PATIENCE_SECONDS // handler.PAUSE_SECONDS + 2):
        look(fsx, action("IN_PROGRESS"))
    status, reason, _ = run(handler, client, event(), clock)
    assert status == "FAILED"
    assert f"root squash of {SYSTEM} is still IN_PROGRESS after {handler.PATIENCE_SECONDS} s" in reason
    assert clock.now < 900, "Lambda's own limit"


def test_it_gives_up_on_a_file_system_that_never_gets_free(handler, client, fsx):
    clock = Clock()
    for _ in range(handler.PATIENCE_SECONDS // handler.PAUSE_SECONDS + 2):
        busy(fsx)
    status, reason, _ = run(handler, client, event(), clock)
    assert (status, clock.now < 900) == ("FAILED", True)
    assert "another update is in progress" in reason


def test_a_refusal_is_not_tried_again(handler, client, fsx):
    fsx.add_client_error("update_file_system", "BadRequest", "Invalid RootSquash: x")
    status, reason, _ = run(handler, client, event())
    assert (status, "Invalid RootSquash: x" in reason) == ("FAILED", True)


def test_delete_leaves_the_file_system_alone(handler, client, fsx):
    assert run(handler, client, event("Delete", PhysicalResourceId="kept")) == ("SUCCESS", "", "kept")
    fsx.assert_no_pending_responses()


def test_cloudformation_is_answered(handler, client, fsx, answers):
    url, received = answers
    accept(fsx)
    look(fsx, action("COMPLETED"), squash=SQUASH)
    handler.root_squash(event(url=url), None, client=client, clock=Clock())
    ((path, headers, body),) = received
    assert path == "/answer?signature=a%2Fb"
    # The URL is signed for an empty type; any other and S3 answers 403.
    assert headers.get("Content-Type", "") == ""
    assert body == {
        "Status": "SUCCESS", "Reason": "", "PhysicalResourceId": f"{SYSTEM}/root-squash", "StackId": "stack",
        "RequestId": "request", "LogicalResourceId": "RootSquash",
    }  # fmt: skip


@pytest.mark.parametrize(
    "properties",
    [{"FileSystemId": SYSTEM}, {"RootSquash": "0:0"}, {}],
    ids=["no squash", "no system", "nothing"],
)
def test_whatever_happens_cloudformation_is_answered(handler, client, answers, properties):
    url, received = answers
    handler.root_squash(event(url=url, ResourceProperties=properties), None, client=client, clock=Clock())
    ((_, _, body),) = received
    assert body["Status"] == "FAILED"
    assert body["Reason"]
    assert body["PhysicalResourceId"]


def test_a_long_reason_fits_the_answer(handler, answers):
    """CloudFormation takes 4 KiB in all."""
    url, received = answers
    handler.respond(event(url=url), "FAILED", "x" * 5000, "id")
    assert int(received[0][1]["Content-Length"]) < 4096


GROUP = "/aws/sagemaker/Clusters/fleet-train/abc123"


@pytest.fixture
def logs():
    client = boto3.client("logs", region_name="us-east-2", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        yield client, stub


def kept_for(handler, client, kind: str, days: object = "30") -> tuple[str, str, str]:
    sent: list[tuple[str, str, str]] = []
    # CloudFormation hands every property over as text.
    given = event(kind, ResourceProperties={"LogGroupName": GROUP, "RetentionInDays": days})
    handler.log_retention(given, None, client=client, send=lambda _, *rest: sent.append(rest))
    (answer,) = sent
    return answer


@pytest.mark.parametrize("there", [True, False], ids=["made by HyperPod", "not there yet"])
def test_a_clusters_logs_get_an_end(handler, logs, there: bool):
    client, stub = logs
    if there:
        stub.add_client_error("create_log_group", "ResourceAlreadyExistsException")
    else:
        stub.add_response("create_log_group", {}, {"logGroupName": GROUP})
    stub.add_response("put_retention_policy", {}, {"logGroupName": GROUP, "retentionInDays": 30})
    assert kept_for(handler, client, "Create") == ("SUCCESS", "", GROUP)
    stub.assert_no_pending_responses()


def test_a_retention_that_aws_refuses_fails_the_deploy(handler, logs):
    client, stub = logs
    stub.add_response("create_log_group", {})
    stub.add_client_error("put_retention_policy", "InvalidParameterException", "31 is no period")
    status, reason, _ = kept_for(handler, client, "Create", "31")
    assert (status, "31 is no period" in reason) == ("FAILED", True)


def test_the_logs_outlive_the_stack(handler, logs):
    client, stub = logs
    assert kept_for(handler, client, "Delete")[0] == "SUCCESS"
    stub.assert_no_pending_responses()
