"""`trainshed mirror` against a real S3 API and a real web server."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from functools import partial
from pathlib import Path

import boto3
import pytest
import yaml
from moto import mock_aws

from tests.support import ROOT
from trainshed.cli import main

BUCKET = "sagemaker-quickstart-123456789012-us-east-2"
DIGEST = hashlib.sha256(b"program").hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing on standard error."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def web(tmp_path):
    """A publisher's server: one program and its list of digests."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "tool-1.tar.gz").write_bytes(b"program")
    (folder / "sums.txt").write_text(f"{'0' * 64}  other.tar.gz\n{DIGEST}  tool-1.tar.gz\n")
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def run(tmp_path, web, capsys, monkeypatch):
    """`run(sha256=…, sums=…, **files)` → exit code and what was printed; the bucket is there."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr("time.sleep", lambda _: None)
    document = yaml.safe_load((ROOT / "deployments/quickstart.yaml").read_text())
    document["account"] = "123456789012"
    document["clusters"]["train"]["nodes"] = {"metrics": {"url": "https://m.example.org/w", "auth": "none"}}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(document))
    manifest = tmp_path / "mirror.json"

    def get(*flags: str, bucket: str | None = BUCKET, **entry: object) -> tuple[int, str, str]:
        _, url = web
        told = {"name": "tool", "version": "1", "machine": "x86_64", "for": "metrics", "sums": None,
                "url": f"{url}/tool-1.tar.gz", "sha256": DIGEST, **entry}  # fmt: skip
        if not manifest.exists() or entry:
            manifest.write_text(
                json.dumps({"packages": [told, {**told, "machine": "aarch64", "url": "http://x/y"}]})
            )
        with mock_aws():
            s3 = boto3.client("s3", region_name="us-east-2")
            if bucket:
                s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-east-2"})
            code = main(["mirror", str(tmp_path / "demo.yaml"), "--manifest", str(manifest), *flags])
            get.keys = (
                [o["Key"] for o in s3.list_objects_v2(Bucket=bucket).get("Contents", [])] if bucket else []
            )
            printed = capsys.readouterr()
        return code, printed.out, printed.err

    get.manifest = manifest
    return get


def test_what_nodes_want_is_laid_down_by_digest_and_no_more(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert run.keys == [f"mirror/{DIGEST}/tool-1.tar.gz"], "x86_64 nodes only"
    assert out == f"uploaded s3://{BUCKET}/mirror/{DIGEST}/tool-1.tar.gz\n"


def test_files_fetched_elsewhere_do(run, web):
    folder, _ = web
    code, _, err = run("--from", str(folder), url="http://nowhere.invalid/tool-1.tar.gz")
    assert (code, err) == (0, "")
    assert run.keys == [f"mirror/{DIGEST}/tool-1.tar.gz"]


def test_a_digest_is_pinned_from_the_publishers_list(run, web):
    _, url = web
    code, out, _ = run("--pin", sha256=None, sums=f"{url}/sums.txt")
    assert code == 0
    assert f"pinned tool 1 x86_64: {DIGEST}" in out
    first, second = json.loads(run.manifest.read_text())["packages"]
    assert (first["sha256"], second["sha256"]) == (DIGEST, None)
    assert run()[0] == 0, "what was pinned needs no --pin"


@pytest.mark.parametrize(
    ("entry", "flags", "words"),
    [
        ({"sha256": "0" * 64}, (), (DIGEST, "0" * 64, "find out why")),
        ({"sha256": None}, (), ("no sha256", "--pin")),
        ({"sha256": None, "sums": "{url}/none.txt"}, ("--pin",), ("none.txt", "404")),
        ({"url": "{url}/other.tar.gz", "sha256": None, "sums": "{url}/tool-1.tar.gz"}, ("--pin",), ("404",)),
        ({"url": "http://nowhere.invalid/x"}, (), ("nowhere.invalid", "--from FOLDER")),
        ({}, ("--from", "nowhere"), ("no tool-1.tar.gz", "fetch it there first")),
    ],
)
def test_what_cannot_be_had_or_is_not_what_was_pinned_is_refused(run, web, entry, flags, words):
    _, url = web
    told = {k: v.format(url=url) if isinstance(v, str) else v for k, v in entry.items()}
    code, out, err = run(*flags, **told)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert all(word in line for word in words), line
    assert run.keys == [], "nothing was uploaded"


def test_the_list_must_name_the_file(run, web):
    folder, url = web
    (folder / "sums.txt").write_text("")
    code, _, err = run("--pin", sha256=None, sums=f"{url}/sums.txt")
    assert code == 2
    assert "no tool-1.tar.gz" in err


def test_a_bucket_that_is_not_there(run):
    code, _, err = run(bucket=None)
    assert code == 2
    assert "deploy the storage stack first" in err


@pytest.mark.parametrize("text", ["{", "[]", '{"packages": [{"name": "x"}]}', '{"packages": 3}'])
def test_a_manifest_that_is_none(run, text):
    run.manifest.write_text(text)
    code, _, err = run()
    assert code == 2
    assert "compare it with lifecycle/mirror.json" in err


def test_with_nothing_on_there_is_nothing_to_do(tmp_path, capsys):
    plain = ROOT / "deployments/quickstart.yaml"
    assert main(["mirror", str(plain), "--manifest", str(ROOT / "lifecycle/mirror.json")]) == 0
    assert "nothing to mirror" in capsys.readouterr().out


def test_our_own_manifest_can_be_read():
    entries = json.loads((Path(ROOT) / "lifecycle/mirror.json").read_text())["packages"]
    assert {entry["for"] for entry in entries} == {"metrics", "gpu-metrics", "cloudwatch", "lustre-efa"}
    assert all(entry["sha256"] is None or len(entry["sha256"]) == 64 for entry in entries)
