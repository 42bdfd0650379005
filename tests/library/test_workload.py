"""The trainer's image and files: what they depend on, where they go, and who may read them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import aws_cdk as cdk
import pytest

from tests.support import (
    FLAGS,
    ROOT,
    Assembly,
    allowed,
    listed,
    of_type,
    only,
    resources_for,
    shown,
    statements_of,
)
from trainshed.image import TrainerImage

REGION = "us-west-2"
STACK, TRAIN = f"fleet-{REGION}-workload", f"fleet-{REGION}-train"
OWN = "111122223333.dkr.ecr.us-west-2.amazonaws.com/team/trainer:2026-11"


def repository(folder: Path) -> Path:
    """The parts of a checkout that matter here, and some that must not."""
    for name in ("trainer", "requirements", "docs", "tests/library"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def image_of(folder: Path, out: Path, **more: object) -> tuple[dict, str]:
    """The one image of an assembly, and where it lies."""
    app = cdk.App(context=FLAGS, outdir=str(out))
    stack = cdk.Stack(app, "Stack", env=cdk.Environment(region="us-east-2"))
    made = TrainerImage(stack, "Image", repository=str(folder), **more)
    cdk.CfnOutput(stack, "Uri", value=made.uri)
    app.synth()
    (assets,) = out.glob("*.assets.json")
    ((tag, image),) = json.loads(assets.read_text(encoding="utf-8"))["dockerImages"].items()
    return image["source"], tag


@pytest.fixture
def built(tmp_path):
    """`built(change)`: the image of a checkout after a change of it."""
    numbers = iter(range(9))

    def get(change=lambda folder: None, **more: object) -> tuple[dict, str, Path]:
        place = tmp_path / str(next(numbers))
        folder = repository(place / "repository")
        change(folder)
        source, tag = image_of(folder, place / "out", **more)
        return source, tag, place / "out" / source["directory"]

    return get


def test_the_image_is_built_of_what_the_dockerfile_copies_and_nothing_else(built) -> None:
    source, _, staged = built()
    found = {p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file()}
    copied = {f"requirements/{name}.txt" for name in ("image", "sbom")}
    code = {p.relative_to(ROOT).as_posix() for p in (ROOT / "trainer").rglob("*") if p.is_file()}
    left_out = {n for n in code if "__pycache__" in n} | {"trainer/Dockerfile.dockerignore"}
    assert found == copied | (code - left_out)
    assert source["dockerFile"] == "trainer/Dockerfile"
    assert source["platform"] == "linux/amd64"
    copies = [
        line.split()[1:-1]
        for line in (ROOT / "trainer/Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY") and "--from" not in line
    ]
    wanted = {name for names in copies for name in names}
    assert wanted == {*copied, "trainer"}


def test_only_what_is_copied_makes_another_image(built) -> None:
    def docs(folder: Path) -> None:
        (folder / "docs/trainer.md").write_text("other words")
        (folder / "tests/library/new.py").write_text("")
        (folder / "requirements/dev.txt").write_text("")
        (folder / "trainer/__pycache__").mkdir()
        (folder / "trainer/__pycache__/train.pyc").write_bytes(b"x")
        for path in (folder / "trainer").glob("*.py"):
            os.utime(path, (0, 0))

    def code(folder: Path) -> None:
        with (folder / "trainer/train.py").open("a") as file:
            file.write("# another\n")

    def lock(folder: Path) -> None:
        with (folder / "requirements/image.txt").open("a") as file:
            file.write("# another\n")

    def recipe(folder: Path) -> None:
        with (folder / "trainer/Dockerfile").open("a") as file:
            file.write("# another\n")

    tags = {change.__name__: built(change)[1] for change in (docs, code, lock, recipe)}
    assert tags["docs"] == built()[1]
    assert len(set(tags.values())) == 4
    assert built(base_image="public.ecr.aws/a/b:1")[1] not in tags.values()


def test_the_revision_is_told_to_the_image(built) -> None:
    source, _, _ = built(base_image="public.ecr.aws/a/b:1", architecture="arm64")
    assert source["dockerBuildArgs"]["BASE_IMAGE"] == "public.ecr.aws/a/b:1"
    assert len(source["dockerBuildArgs"]["REVISION"]) == 64
    assert source["platform"] == "linux/arm64"
    other = built(lambda folder: (folder / "trainer/new.py").write_text(""))[0]
    assert other["dockerBuildArgs"]["REVISION"] != source["dockerBuildArgs"]["REVISION"]
    arguments = (ROOT / "trainer/Dockerfile").read_text(encoding="utf-8")
    assert all(f"ARG {name}" in arguments for name in source["dockerBuildArgs"])


@pytest.fixture(scope="module")
def template(templates):
    return templates("slurm-production")[STACK]


def test_files_go_under_one_prefix_and_nothing_else_is_touched(template) -> None:
    upload = only(template, "Custom::CDKBucketDeployment")[1]["Properties"]
    assert "Datasets" in shown(upload["DestinationBucketName"])
    assert upload["DestinationBucketKeyPrefix"] == "trainshed/"
    assert upload["Prune"] is True
    assert upload["RetainOnDelete"] is True
    (role,) = [n for n in of_type(template, "AWS::IAM::Role") if n.startswith("Files")]
    (deny,) = [s for s in statements_of(template, role) if s["Effect"] == "Deny"]
    assert deny["Action"] == ["s3:DeleteObject*", "s3:PutObject*"]
    assert shown(deny["NotResource"]).endswith('/trainshed/*"]]}')


def test_recipes_and_templates_lie_in_folders_of_their_names(assembly) -> None:
    made: Assembly = assembly("slurm-production")
    upload = only(made.templates[STACK], "Custom::CDKBucketDeployment")[1]["Properties"]
    found = {
        p.relative_to(folder).as_posix()
        for key in upload["SourceObjectKeys"]
        for folder in [made.asset(key)]
        for p in folder.rglob("*")
        if p.is_file()
    }
    recipes = {f"recipes/{p.name}" for p in (ROOT / "trainer/recipes").iterdir()}
    jobs = {f"jobs/{p.name}" for p in (ROOT / "lifecycle/jobs").glob("*") if p.is_file()}
    assert recipes
    assert found == {"image.json", *recipes, *jobs}


def test_the_image_s_address_is_told_to_users_and_operators(templates) -> None:
    made = templates("slurm-production", set=f"workload.image={OWN}", regions=REGION)[STACK]
    assert made["Outputs"]["TrainerImage"]["Value"] == OWN


def test_users_nodes_pull_from_the_one_repository(templates) -> None:
    template = templates("slurm-production")[TRAIN]
    pulling = {}
    for name in of_type(template, "AWS::IAM::Role"):
        statements = statements_of(template, name)
        if repositories := resources_for(statements, "ecr:BatchGetImage"):
            pulling[name.partition("Role")[0]] = repositories
            assert allowed(statements, "ecr:GetAuthorizationToken")
            assert not allowed(statements, "ecr:PutImage")
    assert set(pulling) == {"Login", "Worker"}
    for (repository_arn,) in pulling.values():
        assert "cdk-hnb659fds-container-assets-" in shown(repository_arn)
        assert "*" not in shown(repository_arn)


def test_an_image_of_ones_own_is_pulled_from_its_own_account(templates) -> None:
    made = templates("slurm-production", set=f"workload.image={OWN}", regions=REGION)
    for template in (made[TRAIN], made[STACK]):
        found = {
            shown(r)
            for name in of_type(template, "AWS::IAM::Role")
            for r in resources_for(statements_of(template, name), "ecr:BatchGetImage")
        }
        assert found == {'"arn:aws:ecr:us-west-2:111122223333:repository/team/trainer"'}


def test_who_has_no_workload_pulls_nothing(templates) -> None:
    for template in templates("quickstart").values():
        for name in of_type(template, "AWS::IAM::Role"):
            assert not [
                a for s in statements_of(template, name) for a in listed(s["Action"]) if a.startswith("ecr:")
            ]
