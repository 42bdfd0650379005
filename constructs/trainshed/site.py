"""The operator's own files for nodes: read, checked, and handed to the plan as a folder to upload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .planning.model import ClusterPlan, PlatformPlan
from .planning.nodes import check_site
from .planning.problems import Problem, raise_if

MOST_BYTES = 200_000_000  # the upload's Lambda function holds 512 MB


def with_sites(plan: PlatformPlan, folder: Path) -> PlatformPlan:
    """The plan with each cluster's site folder found, relative to the deployment file's.

    Raises:
        PlanError: a folder is missing, or holds what the steps do not know.
    """
    problems: list[Problem] = []
    regions = tuple(
        replace(region, clusters=tuple(_with_site(c, folder, problems) for c in region.clusters))
        for region in plan.regions
    )
    raise_if(dict.fromkeys(problems))
    return replace(plan, regions=regions)


def _with_site(cluster: ClusterPlan, folder: Path, problems: list[Problem]) -> ClusterPlan:
    given = cluster.nodes.site
    if given is None:
        return cluster
    site, path = (folder / given).resolve(), f"{cluster.path}.nodes.site"
    if not site.is_dir():
        problems.append(Problem(path, given, f"a folder in {folder}", "make it, or correct the path"))
        return cluster
    found = [file for file in sorted(site.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    size = sum(file.stat().st_size for file in found)
    if size > MOST_BYTES:
        allowed = f"{MOST_BYTES // 10**6} MB together"
        problems.append(Problem(path, f"{size // 10**6} MB", allowed, "put packages into your AMI"))
    files = {file.relative_to(site).as_posix(): _text(file) for file in found}
    problems += check_site(files, path=path)
    names = tuple(name.partition("/")[2] for name in files if name.startswith("certificates/"))
    return replace(cluster, nodes=replace(cluster.nodes, site=str(site), certificates=names))


def _text(file: Path) -> str | None:
    if file.suffix not in (".csv", ".pem", ".crt"):
        return None
    return file.read_text(encoding="utf-8", errors="replace")
