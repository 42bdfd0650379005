"""`trainshed mirror`: what nodes install at boot, fetched once, checked by digest, laid into our buckets.

Nodes then need no way out to the internet, and get the same bytes on the day a publisher's site is down.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import boto3  # pyright: ignore[reportMissingTypeStubs]
from boto3.exceptions import Boto3Error  # pyright: ignore
from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore

from ..planning.instances import INSTANCE_TYPES
from ..planning.model import PlatformPlan, RegionPlan
from ..planning.nodes import MIRROR, lifecycle_bucket_name, programs_for
from ..planning.problems import PlanError, Problem

TRIES = 4
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One program of the manifest; `sha256` is None until it is pinned, `sums` the publisher's own list."""

    name: str
    version: str
    machine: str
    use: str
    url: str
    sums: str | None
    sha256: str | None

    @property
    def file(self) -> str:
        """File name, the last part of the URL."""
        return self.url.rpartition("/")[2]


def read_manifest(path: Path) -> list[Package]:
    """The programs that nodes may want.

    Raises:
        PlanError: the manifest cannot be read.
    """
    try:
        entries = cast(
            "list[dict[str, str | None]]", json.loads(path.read_text(encoding="utf-8"))["packages"]
        )
        return [Package(**{"use" if k == "for" else k: v for k, v in e.items()}) for e in entries]  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = 'JSON {"packages": [{name, version, machine, for, url, sums, sha256}]}'
        raise PlanError(
            [Problem(str(path), str(error), allowed, "compare it with lifecycle/mirror.json")]
        ) from None


def wanted(region: RegionPlan, packages: list[Package]) -> Iterator[Package]:
    """What the nodes of a region will ask for."""
    lustre = {fs.name: fs for fs in region.lustre}
    asked: set[tuple[str, str]] = set()
    for cluster in region.clusters:
        served = lustre.get(cluster.lustre or "")
        for group in cluster.groups:
            kind = INSTANCE_TYPES[group.instance_type]
            uses = programs_for(cluster.nodes, kind, lustre_efa=bool(served and served.efa))
            asked |= {(use, MACHINES[kind.architecture]) for use in uses}
    for package in packages:
        if any(use == package.use and package.machine in (machine, "any") for use, machine in asked):
            yield package


def mirror(
    plan: PlatformPlan, manifest: Path, *, offline: Path | None = None, pin: bool = False
) -> Iterator[str]:
    """Fetch, check and upload; yields a line for each thing done.

    Args:
        plan: whose nodes and regions.
        manifest: lifecycle/mirror.json, or a site's own.
        offline: a folder that holds the files already, for machines without a way out.
        pin: write digests that the manifest lacks, from the publisher's list, or of what was fetched.

    Raises:
        PlanError: a file cannot be had, is not what was pinned, or the bucket is not there.
    """
    packages = read_manifest(manifest)
    by_region = {region.region: list(wanted(region, packages)) for region in plan.regions}
    needed = {package.url: package for found in by_region.values() for package in found}
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Path] = {}
        for url, package in needed.items():
            files[url] = _fetched(package, Path(folder), offline)
            digest = hashlib.sha256(files[url].read_bytes()).hexdigest()
            expected = package.sha256 or (_published(package) if pin else None)
            if expected is None and not pin:
                allowed = "a pinned SHA-256"
                raise PlanError(
                    [Problem(f"{manifest}: {package.name}", "no sha256", allowed, "add --pin, and commit")]
                )
            if expected not in (None, digest):
                fix = "fetch it again; if the publisher replaced it, find out why"
                raise PlanError([Problem(package.url, f"SHA-256 {digest}", str(expected), fix)])
            needed[url] = replace(package, sha256=digest)
            if package.sha256 is None:
                yield f"pinned {package.name} {package.version} {package.machine}: {digest}"
        if pin:
            _write_pins(manifest, {url: str(package.sha256) for url, package in needed.items()})
        account = plan.account or (_account() if needed else "")
        for region, found in by_region.items():
            bucket = lifecycle_bucket_name(plan.name, account, region)
            for package in found:
                key = f"{MIRROR}/{needed[package.url].sha256}/{package.file}"
                yield _uploaded(region, bucket, key, files[package.url])
    if not needed:
        yield "nothing to mirror: neither metrics nor CloudWatch logs nor Lustre over EFA is on"


def _fetched(package: Package, folder: Path, offline: Path | None) -> Path:
    if offline:
        if not (offline / package.file).is_file():
            raise PlanError(
                [Problem(str(offline), f"no {package.file}", package.url, "fetch it there first")]
            )
        return offline / package.file
    target = folder / f"{package.machine}-{package.file}"
    with _opened(package.url) as answer, target.open("wb") as file:  # type: ignore[attr-defined]
        shutil.copyfileobj(answer, file)  # type: ignore[arg-type]
    return target


def _opened(url: str):  # noqa: ANN202 (urllib's own answer)
    for again in range(1, TRIES + 1):
        try:
            return urllib.request.urlopen(url, timeout=60)  # noqa: S310 (the operator's own manifest)
        except OSError as error:
            if again == TRIES:
                fix = "run it where the internet can be reached, or give --from FOLDER"
                raise PlanError([Problem(url, str(error), "an answer", fix)]) from None
            time.sleep(2**again)
    raise AssertionError


def _published(package: Package) -> str | None:
    if package.sums is None:
        return None
    with _opened(package.sums) as answer:
        text = str(answer.read(), encoding="utf-8")
    for line in text.splitlines():
        digest, _, name = line.partition(" ")
        if name.strip(" *") == package.file:
            return digest
    raise PlanError([Problem(package.sums, f"no {package.file}", "a line for it", "correct url or sums")])


def _write_pins(manifest: Path, pins: Mapping[str, str]) -> None:
    document = json.loads(manifest.read_text(encoding="utf-8"))
    for entry in document["packages"]:
        entry["sha256"] = pins.get(entry["url"], entry["sha256"])
    manifest.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _account() -> str:
    try:
        return str(boto3.client("sts").get_caller_identity()["Account"])  # pyright: ignore
    except (BotoCoreError, ClientError) as error:
        fix = "set account in the deployment file, or log in"
        raise PlanError([Problem("account", str(error), "AWS credentials", fix)]) from None


class _S3(Protocol):
    """What is used of boto3's client."""

    def list_objects_v2(self, *, Bucket: str, Prefix: str) -> Mapping[str, Any]: ...  # noqa: N803

    def upload_file(self, filename: str, bucket: str, key: str) -> None: ...


def _uploaded(region: str, bucket: str, key: str, file: Path) -> str:
    s3 = cast("_S3", boto3.client("s3", region_name=region))  # pyright: ignore
    try:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key)
        if any(item["Size"] == file.stat().st_size for item in listed.get("Contents", ())):
            return f"s3://{bucket}/{key} is there"
        s3.upload_file(str(file), bucket, key)
    except (BotoCoreError, ClientError, Boto3Error) as error:
        fix = "deploy the storage stack first, with these credentials"
        raise PlanError([Problem(f"s3://{bucket}", str(error), "our lifecycle bucket", fix)]) from None
    return f"uploaded s3://{bucket}/{key}"
