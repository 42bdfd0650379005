"""`trainshed` from the outside: what it prints, what it writes, and how it ends."""

# What is printed is read across.
# ruff: noqa: E501

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from trainshed import cli
from trainshed.cli import main
from trainshed.drawing import Cell, block_figure, page_figure
from trainshed.loading import load
from trainshed.planning.instances import INSTANCE_TYPES

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(p for p in (ROOT / "deployments").glob("*.yaml") if not p.name.endswith(".lock.yaml"))
QUICKSTART = (ROOT / "deployments/quickstart.yaml").read_text()
P5 = "clusters.train.groups.p5"


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(QUICKSTART)
    return Path("demo.yaml")


@pytest.fixture
def run(capsys):
    def trainshed(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return trainshed


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def lock_of(path: Path) -> dict:
    return yaml.safe_load(path.with_name("demo.lock.yaml").read_text())["regions"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_a_plan_reads_at_a_hundred_columns(example, run):
    code, out, err = run("plan", example)
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() for line in lines)
    assert "Next: " in last


def test_a_plan_says_what_was_decided(file, run):
    out = run("plan", file)[1]
    for said in (
        "quickstart: 4 nodes now, 18 at the declared growth, in us-east-2",
        "10.16.0.0/22  primary         1024        1024            53 %",
        "group/train/p5          use2-az1  10.16.0.0/22     1019   96     544  30 nodes  new",
        "p5          worker      ml.p5.48xlarge      2       16  32 published   32  8 x H100 80 GiB",
        "controller  controller  ml.m5.4xlarge       1        1  1 derived       0  -",
        "main: Lustre in use2-az1, ssd 4.8 TiB with room for 7.2, 1200 MB/s (250 a TiB)",
        "/datasets     datasets/     NEW, CHANGED, DELETED  -",
        "Endpoints (nat): gateway s3; interface none",
    ):
        assert said in out, out
    assert out.splitlines()[-1] == "Not locked (5 new subnets). Next: `trainshed plan demo.yaml --lock`."


def test_a_locked_subnet_takes_as_many_nodes_as_the_plan_says_and_no_more(file, run):
    assert run("plan", file, "--lock")[0] == 0
    code, out, _ = run("plan", file, "--set", f"{P5}.count=30", "--set", f"{P5}.grow_to=30")
    assert (code, "992  30 nodes  locked" in out) == (0, True), out
    code, _, err = run("plan", file, "--set", f"{P5}.count=31", "--set", f"{P5}.grow_to=31")
    assert code != 0
    assert "10.16.0.0/22" in err, err


def test_the_next_command_repeats_the_flags(file, run):
    out = run("plan", file, "--regions", "us-west-2", "--set", f"{P5}.count=4", "--set", "tags.a=b c")[1]
    assert out.splitlines()[-1] == (
        "Not locked (5 new subnets). Next: `trainshed plan demo.yaml --regions=us-west-2 "
        f"--set={P5}.count=4 '--set=tags.a=b c' --lock`."
    )
    assert "  - us-west-2: no zones given: usw2-az1 was taken" in out


def test_long_names_lose_their_middle_in_text_and_nothing_in_json(file, run):
    name = "a" * 31 + "-" + "b" * 31
    edit(file, "      p5:", f"      {name}:")
    out = run("plan", file)[1]
    assert max(map(len, out.splitlines()[:-1])) <= 100
    assert "aaaa..bb" in out
    assert f"group/train/{name}" in run("plan", file, "--json")[1]


def keys(value: object, at: str = "") -> set[str]:
    if isinstance(value, dict):
        return {f"{at}.{k}".lstrip(".") for k in value} | {
            p for k, v in value.items() for p in keys(v, f"{at}.{k}")
        }
    return {p for v in value for p in keys(v, f"{at}[]")} if isinstance(value, list) else set()


# Programs read these: a key may be added, none renamed or dropped.
PROMISED = [
    "format",
    "name",
    "account",
    "protect",
    "tags",
    "regions",
    "warnings",
    "lock",
    "lock.path",
    "lock.regions",
    "lock.regions.us-east-2.state",
    "lock.regions.us-east-2.new",
    "lock.regions.us-east-2.retired",
    "regions[].region",
    "regions[].zones",
    "regions[].network",
    "regions[].buckets",
    "regions[].lustre",
    "regions[].lustre_grow_to",
    "regions[].home",
    "regions[].clusters",
    "regions[].addresses",
    "regions[].given",
    "regions[].warnings",
    "regions[].endpoints",
    "regions[].network.egress",
    "regions[].network.egress_ports",
    "regions[].network.vpc_id",
    "regions[].network.block_quota",
    "regions[].addresses.blocks",
    "regions[].addresses.subnets",
    "regions[].addresses.unlocked",
    "regions[].addresses.reserved_addresses",
    "regions[].addresses.needed_addresses",
    "regions[].addresses.subnets[].claim",
    "regions[].addresses.subnets[].zone",
    "regions[].addresses.subnets[].purpose",
    "regions[].addresses.subnets[].cidr",
    "regions[].addresses.subnets[].needed",
    "regions[].addresses.subnets[].reserved",
    "regions[].addresses.subnets[].usable",
    "regions[].addresses.subnets[].state",
    "regions[].addresses.subnets[].retired",
    "regions[].lustre[].name",
    "regions[].lustre[].zone",
    "regions[].lustre[].storage_class",
    "regions[].lustre[].capacity_gib",
    "regions[].lustre[].throughput_mbps_per_tib",
    "regions[].lustre[].efa",
    "regions[].lustre[].object_servers",
    "regions[].lustre[].metadata_servers",
    "regions[].lustre[].addresses",
    "regions[].lustre[].aggregate_throughput_mbps",
    "regions[].lustre[].associations[].file_system_path",
    "regions[].lustre[].associations[].bucket",
    "regions[].clusters[].name",
    "regions[].clusters[].orchestrator",
    "regions[].clusters[].groups",
    "regions[].clusters[].groups[].name",
    "regions[].clusters[].groups[].role",
    "regions[].clusters[].groups[].instance_types",
    "regions[].clusters[].groups[].count",
    "regions[].clusters[].groups[].grow_to",
    "regions[].clusters[].groups[].zone",
    "regions[].clusters[].groups[].claim",
    "regions[].clusters[].groups[].interface",
    "regions[].clusters[].groups[].surge_nodes",
    "regions[].clusters[].groups[].addresses_per_node",
    "regions[].clusters[].groups[].addresses_are_published",
    "regions[].clusters[].groups[].efa_interfaces",
    "regions[].clusters[].groups[].accelerator",
    "regions[].clusters[].groups[].accelerators",
    "regions[].clusters[].groups[].accelerator_memory_gib",
]


def test_the_json_document_keeps_its_keys(file, run):
    code, out, err = run("plan", file, "--json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert set(PROMISED) <= keys(body), set(PROMISED) - keys(body)
    assert body["format"] == 1
    region = body["regions"][0]
    assert region["addresses"]["blocks"] == ["10.16.0.0/22", "10.16.4.0/26"]
    assert region["addresses"]["subnets"][0] == {
        "claim": "group/train/p5", "zone": "use2-az1", "purpose": "nodes", "cidr": "10.16.0.0/22", "needed": 96,
        "reserved": 544, "retired": False, "usable": 1019, "state": "new",
    }  # fmt: skip
    assert region["clusters"][0]["groups"][2]["addresses_per_node"] == 32
    assert body["lock"] == {
        "path": "demo.lock.yaml",
        "regions": {
            "us-east-2": {"state": "not locked", "new": region["addresses"]["unlocked"], "retired": []}
        },
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_the_json_document_says_what_the_plan_says(example, run):
    plan = load(example).plan
    body = json.loads(run("plan", example, "--json")[1])
    for told, region in zip(body["regions"], plan.regions, strict=True):
        assert [s["cidr"] for s in told["addresses"]["subnets"]] == [
            str(s.cidr) for s in region.addresses.subnets
        ]
        assert told["given"] == region.given
        assert {s["state"] for s in told["addresses"]["subnets"]} <= (
            {"given"} if region.given else {"new", "locked"}
        )
    assert body["warnings"] == list(plan.warnings)


def test_locking_appends_and_says_so(file, run):
    code, out, err = run("plan", file, "--lock")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "locked 5 new subnets in us-east-2", "wrote demo.lock.yaml: commit it beside the deployment file",
    ]  # fmt: skip
    first = lock_of(file)
    assert run("plan", file)[1].splitlines()[-1] == "Locked in demo.lock.yaml. Next: `npx cdk diff`."

    stamp = Path("demo.lock.yaml").stat().st_mtime_ns
    out = run("plan", file, "--lock")[1]
    assert out.splitlines() == ["no new subnets in us-east-2", "demo.lock.yaml stays as it is"]
    assert Path("demo.lock.yaml").stat().st_mtime_ns == stamp

    file.write_text(QUICKSTART + "      more: {type: ml.p5.48xlarge, count: 1, partition: more}\n")
    out = run("plan", file)[1]
    assert "group/train/more        use2-az1  10.16" in out
    assert out.splitlines()[-1] == "Locked in part (1 new subnets). Next: `trainshed plan demo.yaml --lock`."
    assert run("plan", file, "--lock")[1].startswith("locked 1 new subnet in us-east-2\n")
    second = lock_of(file)["us-east-2"]["subnets"]
    assert second.pop("group/train/more")
    assert second == first["us-east-2"]["subnets"]


def test_locking_one_region_keeps_the_others(file, run):
    run("plan", file, "--lock")
    east = lock_of(file)["us-east-2"]
    out = run("plan", file, "--lock", "--regions", "us-west-2")[1]
    assert out.startswith("locked 5 new subnets in us-west-2\n")
    assert lock_of(file)["us-east-2"] == east
    assert set(lock_of(file)) == {"us-east-2", "us-west-2"}


def test_pruning_forgets_what_has_no_tenant_and_says_so(file, run):
    edit(file, "      p5:", "      old: {type: ml.m5.4xlarge, count: 1, partition: old}\n      p5:")
    run("plan", file, "--lock")
    file.write_text(QUICKSTART)
    out = run("plan", file)[1]
    assert "retired" in out
    assert out.splitlines()[-1] == (
        "Locked (1 retired subnets). Next: deploy, then `trainshed plan demo.yaml --lock --prune`."
    )
    before = lock_of(file)
    assert "kept 1 retired subnet in us-east-2: group/train/old (10.16." in run("plan", file, "--lock")[1]
    assert lock_of(file) == before

    code, out, _ = run("plan", file, "--lock", "--prune")
    assert code == 0
    assert re.search(
        r"^forgot 1 retired subnet in us-east-2: group/train/old \(10\.16\.[0-9./]+\)$", out, re.M
    )
    after = lock_of(file)
    assert before["us-east-2"]["subnets"].pop("group/train/old")
    assert after == before
    assert "Locked in demo.lock.yaml" in run("plan", file)[1]


def test_pruning_needs_locking(file, run):
    assert run("plan", file, "--prune") == (
        2, "", "error: --prune: given no --lock; allowed both together; fix: add --lock\n",
    )  # fmt: skip


def test_a_refused_plan_locks_nothing(file, run):
    run("plan", file, "--lock")
    before = Path("demo.lock.yaml").read_bytes()
    edit(file, "count: 2, grow_to: 16", "count: 200")
    code, out, err = run("plan", file, "--lock", "--prune")
    assert (code, out) == (2, "")
    assert "short by" in err
    assert Path("demo.lock.yaml").read_bytes() == before
    assert sorted(p.name for p in Path().iterdir()) == ["demo.lock.yaml", "demo.yaml"]


def test_somebody_elses_vpc_has_nothing_to_lock(run, tmp_path):
    at = tmp_path / "demo.yaml"
    at.write_text((ROOT / "deployments/existing-vpc.yaml").read_text())
    code, out, _ = run("plan", at, "--lock")
    assert code == 0
    assert re.match(r"nothing to lock in \S+: vpc-\w+ is given\n", out)
    assert not (tmp_path / "demo.lock.yaml").exists()


def test_what_was_written_is_told_beside_json_on_stderr(file, run):
    code, out, err = run("plan", file, "--json", "--lock", "--html", "map.html")
    assert code == 0
    assert json.loads(out)["lock"]["path"] == "demo.lock.yaml"
    assert err.splitlines() == [
        "locked 5 new subnets in us-east-2",
        "wrote demo.lock.yaml: commit it beside the deployment file",
        "drew map.html",
    ]


def test_changes_are_told_and_end_in_3_where_aws_would_refuse(file, run):
    Path("old.yaml").write_text(QUICKSTART)
    code, out, _ = run("plan", file, "--against", "old.yaml")
    assert (code, out) == (0, "old.yaml -> demo.yaml\n\nno changes\n")
    code, out, _ = run("plan", file, "--set", f"{P5}.count=4", "--against", file)
    assert code == 0
    assert out.endswith("\n1 change: 1 live\n")
    code, out, err = run("plan", file, "--set", f"{P5}.type=ml.p5e.48xlarge,{P5}.count=4", "--against", file)
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert f'  {P5}.type: ["ml.p5.48xlarge"] -> ["ml.p5e.48xlarge"]' in lines
    assert lines.index(f"  {P5}.count: 2 -> 4") > lines.index(
        "live: applied in place; no node and no data is replaced"
    )
    assert max(map(len, lines)) <= 100
    code, out, _ = run("plan", file, "--json", "--set", f"{P5}.type=ml.p5e.48xlarge", "--against", file)
    assert code == 3
    [change] = json.loads(out)["changes"]
    assert change["path"] == f"{P5}.type"
    assert (change["old"], change["new"]) == (["ml.p5.48xlarge"], ["ml.p5e.48xlarge"])
    assert (change["policy"], change["regions"]) == ("never", [])
    assert "beside it" in change["meaning"]


class Page(HTMLParser):
    """Collects what a page is made of, and whether its tags nest."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_the_picture_stands_alone_and_says_everything_in_words(example, run, tmp_path):
    at = tmp_path / "map.html"
    code, out, _ = run("plan", example, "--html", at)
    assert code == 0
    assert out.startswith(f"drew {at}\n")
    text = at.read_text()
    page = Page(text)
    assert not page.all("script")
    assert not re.search(r"https?:|//|src=|@import|url\((?!#)", text.replace("<!doctype", ""))
    for attrs in page.all("svg"):
        assert attrs.get("aria-hidden") == "true" or (attrs["role"] == "img" and attrs["aria-label"])
    assert len(page.all("desc")) == len(page.all("figcaption"))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    words = " ".join(page.text)
    plan = load(example).plan
    for region in plan.regions:
        for block in region.addresses.blocks:
            assert str(block) in words
        for subnet in region.addresses.subnets:
            assert f"{subnet.claim}" in words
            assert str(subnet.cidr) in words
    assert f"{plan.name}: address map" in words


def test_rectangles_are_as_large_as_their_share(file, run):
    run("plan", file, "--html", "map.html")
    text = Path("map.html").read_text()
    large = text[text.index('class="large"') :]
    for block in ("10.16.0.0/22", "10.16.4.0/26"):
        drawing = large[large.index(f"Subnets of VPC block {block}") :].split("</svg>")[0]
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing).groups())
        for cidr, w, h in re.findall(
            r"<title>\d+\. .*?: (\S+) for .*?</title><rect .*?width=\"(\S+)\" height=\"(\S+)\"", drawing
        ):
            share = IPv4Network(cidr).num_addresses / IPv4Network(block).num_addresses
            # Every rectangle is drawn 1.5 smaller at each edge than what it stands for.
            assert (float(w) + 3) * (float(h) + 3) == pytest.approx(share * width * height, rel=1e-4)


@pytest.mark.parametrize("groups", [1, 60])
def test_a_picture_of_few_or_many_subnets_labels_what_fits(groups, file, run):
    more = "".join(
        f"      team{i}: {{type: ml.m5.4xlarge, count: {i}, partition: p}}\n" for i in range(groups)
    )
    file.write_text(QUICKSTART + more)
    assert run("plan", file, "--html", "map.html")[0] == 0
    text = Path("map.html").read_text()
    page = Page(text)
    assert len(page.all("tr")) == 1 + 5 + groups
    for words, x, y in (
        (t, float(x), float(y))
        for x, y, t in re.findall(r'<text class="\w+" x="(\S+)" y="(\S+)">(.*?)</text>', text)
    ):
        assert words
        assert 0 <= x < 960
        assert 0 <= y <= 600


def test_names_are_escaped_everywhere_in_a_picture(file, run):
    # Names cannot hold markup today; the picture must not depend on that.
    evil = '<b onload="x">&\''
    cell = Cell(
        number=1, cidr=IPv4Network("10.0.0.0/24"), claims=(evil,), zone=evil, purpose="nodes", state="new",
        needed=1, reserved=2, usable=251,
    )  # fmt: skip
    block = IPv4Network("10.0.0.0/23")
    for drawn in (
        block_figure(block, [cell], role="primary", rest="free"),
        page_figure(IPv4Network("10.0.0.0/16"), [block], [cell]),
    ):
        assert "<b" not in drawn
        assert 'onload="' not in drawn
        assert "&lt;b onload=&quot;x&quot;&gt;&amp;" in drawn


def test_instances(run):
    code, out, _ = run("instances")
    assert code == 0
    assert re.search(r"^ml\.p5\.48xlarge +8 x H100 80 GiB +32 +32 +1 +81 +50  slurm, eks$", out, re.M)
    assert re.search(r"^ml\.m5\.4xlarge +- +0 +1 +- +30 +-  -$", out, re.M)
    assert max(map(len, out.splitlines())) <= 100
    rows = json.loads(run("instances", "--json")[1])
    assert [row["type"] for row in rows] == list(INSTANCE_TYPES)
    [p5] = [row for row in rows if row["type"] == "ml.p5.48xlarge"]
    assert p5["addresses_per_node"] == {
        "slurm": {"efa": 32, "efa-only": 1},
        "eks": {"efa": 81, "efa-only": 50},
    }
    assert p5["published"] == ["slurm", "eks"]


def test_every_problem_is_one_line(file, run):
    edit(file, "count: 2", 'count: "t\\nwo\\x1b[31m"')
    edit(file, "capacity_tib: 4.8", "capacity_tib: -1")
    code, out, err = run("plan", file)
    assert (code, out) == (2, "")
    assert [line.split(":")[:2] for line in err.splitlines()] == [
        ["error", " storage.lustre.main.capacity_tib"], ["error", f" {P5}.count"],
    ]  # fmt: skip
    assert "\x1b" not in err


@pytest.mark.parametrize("flag", ["--html", "--lock"])
def test_a_place_that_cannot_be_written_is_named_once(flag, file, run):
    if flag == "--html":
        Path("folder").mkdir()
        for place, why in (("folder", "Is a directory"), ("none/x.html", "No such file")):
            code, out, err = run("plan", file, "--html", place)
            assert (code, out) == (2, "")
            assert err.startswith(f"error: {place}: given {why}")
            assert err.count("\n") == 1
    else:
        # As root nothing is read-only, but a lock's name can be too long where the file's is not.
        Path("x" * 247 + ".yaml").write_text(QUICKSTART)
        code, out, err = run("plan", "x" * 247 + ".yaml", "--lock")
        assert (code, out) == (2, "")
        assert "too long" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["plan"],
        ["plot"],
        ["plan", "x", "--no"],
        ["plan", "x", "--lock", "--against", "y"],
        ["plan", "x", "--loc"],
        ["instances", "x"],
    ],
)
def test_wrong_usage_ends_in_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: trainshed" in capsys.readouterr().err


def test_interrupts_and_broken_pipes_are_quiet(file, run, monkeypatch):
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainshed.report.plan_report", interrupt)
    assert run("plan", file) == (130, "", "")

    class Pipe(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdout", Pipe())
    assert main(["instances"]) == 141


def test_a_full_disk_is_one_message(run, monkeypatch):
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    assert main(["instances"]) == 2
    assert errors.getvalue() == "error: [Errno 28] No space left on device\n"


def subprocess_run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "constructs")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_plan_neither_imports_the_cdk_nor_draws_unasked(file):
    ended = subprocess_run("-X", "importtime", "-m", "trainshed", "plan", str(file))
    assert ended.returncode == 0
    imported = set(re.findall(r"\| +([\w.]+)$", ended.stderr, re.M))
    assert "trainshed.planning.plan" in imported
    assert not {
        m
        for m in imported
        if m.split(".")[0] in ("aws_cdk", "jsii", "constructs", "boto3", "botocore", "rich")
    }
    assert (
        not {"trainshed.picture", "trainshed.drawing", "trainshed.comparing", "trainshed.consequences"}
        & imported
    )


def test_the_instance_table_needs_no_schema():
    ended = subprocess_run("-X", "importtime", "-m", "trainshed", "instances")
    assert ended.returncode == 0
    assert "ml.p5.48xlarge" in ended.stdout
    assert "pydantic" not in ended.stderr


def test_a_real_pipe_may_close_early(file):
    script = f"'{sys.executable}' -m trainshed plan {file} --json | head -c 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "constructs")}
    ended = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "{", "")


def test_an_old_terminal_gets_escapes_instead_of_a_traceback(file):
    edit(file, "name: quickstart", "name: quickstart\ntags: {owner: Zoë}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "constructs"), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "trainshed", "plan", "naïve.yaml"]
    ended = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"error: na\\xefve.yaml: given no such file")


def test_exit_codes_are_what_the_module_says():
    assert (cli.REFUSED, cli.NEVER, cli.INTERRUPTED) == (2, 3, 130)
    for code in ("0 done", "2 refused", "3 a change", "130"):
        assert code in (cli.__doc__ or "")
