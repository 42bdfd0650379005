"""Thousands of random deployment files: each is planned, or refused in words; nothing escapes.

The files are drawn from the schema with plausible values, then spoilt as people and editors spoil them.
The same files come every time.
"""

# Assertions on an error that may or may not come belong where it is caught.
# ruff: noqa: E501, PT017

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import yaml

from trainshed.cli import main
from trainshed.deployment import Deployment, sections_in
from trainshed.loading import Loaded, load
from trainshed.planning.instances import INSTANCE_TYPES
from trainshed.planning.problems import PlanError
from trainshed.planning.regions import REGIONS, offering

FILES, BATCHES = 3000, 6
EFA_STEPS = {125: 38.4, 250: 19.2, 500: 9.6, 1000: 4.8}
WORDS = [
    "",
    " ",
    "x",
    "~",
    "null",
    "no",
    "1e3",
    "0x1F",
    "2024-01-02",
    "ünïcode",
    "日本",
    "a\nb",
    "\x85",
    "-",
    "*",
    "{",
    "[",
    "'",
    "a: b",
    "%",
]
ODD = [
    None, True, False, 0, -1, 1, 7, 10**12, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), [], {}, [[]], [None], [{}],
    {"a": 1}, {1: 2}, {None: None}, [1, "a", None], {"a": {"b": {"c": [1, 2, {"d": 3}]}}}, ["use2-az1"] * 3, list(range(60)), *WORDS,
]  # fmt: skip
NOISE = [
    "\t",
    "\n- x\n",
    "&a ",
    "*a",
    "!!int ",
    "!!binary ",
    "!!set {a}",
    "{",
    "}",
    "[",
    ": ",
    "#",
    "---\n",
    "...\n",
    "? ",
    "|\n",
    ">\n",
    "\x00",
    "\ufeff",
    "<<: ",
    "@",
    "`",
    "%YAML 9\n",
    '"',
    "0x",
    "é",
]


def group(rng: random.Random, regions: list[str], zones: list[str], *, efa_zone: str | None) -> dict:
    types = [t for t in INSTANCE_TYPES if all(offering(r, t) == "listed" for r in regions)]
    kind = INSTANCE_TYPES[rng.choice(types)]
    count = rng.choice([0, 1, 2, 4, 8, 16])
    found: dict = {"type": kind.name, "count": count, "partition": rng.choice(["gpu", "cpu", "p5", "a-b"])}
    if zones and rng.random() < 0.4:
        found["zone"] = rng.choice(zones)
    if efa_zone and kind.efa_interfaces:
        found["zone"] = efa_zone
    optional = {
        "grow_to": count + rng.randrange(20),
        "minimum": rng.randrange(count + 1),
        "interface": "efa-only" if kind.efa_interfaces else "efa",
        "capacity": rng.choice(["spot", "on-demand"]),
        "threads_per_core": rng.choice([1, 2]),
        "scratch_gb": rng.choice([1, 500, 16384]),
        "image_id": "ami-0123456789abcdef0",
        "patching": rng.choice([
            {"schedule": "cron(0 3 ? * SUN *)"},
            {"strategy": "WhenIdle", "rolling": {"batch": 2, "wait_seconds": 60}},
            {"strategy": "WhenAllIdle", "rolling": {"batch": 25, "percent": True, "rollback_alarms": ["hot"]}},
        ]),
        **({"deep_health_checks": ["InstanceStress", "InstanceConnectivity"]} if kind.is_gpu else {}),
    }  # fmt: skip
    return found | {k: v for k, v in optional.items() if rng.random() < 0.2}


def lustre(rng: random.Random, zones: list[str]) -> dict:
    found: dict = {"zone": rng.choice(zones)} if zones and rng.random() < 0.3 else {}
    if rng.random() < 0.15:
        found |= {"storage_class": "intelligent-tiering", "throughput_mbps": 4000 * rng.randrange(1, 9)}
        return found | {"metadata_iops": rng.choice([6000, 12000]), "read_cache": {"mode": "proportional"}}
    tier, efa = rng.choice([125, 250, 500, 1000]), rng.random() < 0.3
    step = EFA_STEPS[tier] if efa else 2.4
    size = round(step * rng.randrange(1, 5), 1)
    found |= {"throughput_per_tib": tier, "capacity_tib": size, "efa": efa}
    if rng.random() < 0.5:
        names = rng.sample(["datasets", "checkpoints", "my-own-bucket"], rng.randrange(1, 4))
        found["associations"] = [
            {"path": f"/{n}", "bucket": n, "chunk_mib": rng.choice([1, 1024])} for n in names
        ]
    elif rng.random() < 0.5:
        found["backup_days"] = rng.choice([0, 7, 90])
    optional = {
        "grow_to_tib": size * 2,
        "compression": rng.choice(["lz4", "none"]),
        "root_squash": {"user": "65534:65534", "no_squash_nids": ["10.0.1.6@tcp"]},
        "maintenance": "7:03:00",
        "metadata_iops": 192000,
    }
    return found | {k: v for k, v in optional.items() if rng.random() < 0.2}


def deployment(rng: random.Random) -> dict:
    """A file as a careful person writes it: nearly always right."""
    regions = rng.sample(
        ["us-east-2", "us-west-2", "us-east-1", "eu-north-1", "ap-northeast-1"], rng.choice([1, 1, 1, 2, 3])
    )
    alone = len(regions) == 1 and rng.random() < 0.8
    zones = list(REGIONS[regions[0]].zones[: rng.choice([1, 2, 3])]) if alone else []
    doc: dict = {
        "name": rng.choice(["demo", "fleet-2", "a"]),
        "regions": {r: {"zones": zones} if zones else rng.choice([{}, None]) for r in regions},
    }
    systems = {
        name: lustre(rng, zones) for name in rng.sample(["main", "scratch", "x1"], rng.choice([0, 1, 1, 2]))
    }
    clusters = {}
    for name in rng.sample(["train", "eval"], rng.choice([0, 1, 1, 1, 2])):
        mounted = rng.choice(list(systems)) if systems else None
        efa = bool(mounted) and systems[mounted]["efa"] if mounted and "efa" in systems[mounted] else False
        efa_zone = (systems[mounted].get("zone") or zones[0]) if mounted and efa and zones else None
        groups = {"controller": {"role": "controller", "type": "ml.m5.4xlarge", "count": 1}}
        if rng.random() < 0.5:
            groups["login"] = {"role": "login", "type": "ml.m5.large", "count": rng.choice([1, 2])}
        for i in range(rng.randrange(4)):
            groups[f"g{i}"] = group(rng, regions, [] if efa and not zones else zones, efa_zone=efa_zone)
        clusters[name] = {"groups": groups, **({"lustre": mounted} if mounted else {})}
        for key, value in {"node_recovery": False, "home": False, "orchestrator": {"kind": "slurm"}}.items():
            if rng.random() < 0.2:
                clusters[name][key] = value
    doc |= {"storage": {"lustre": systems}, "clusters": clusters} if rng.random() < 0.95 else {}
    if rng.random() < 0.3:
        doc.setdefault("storage", {})["home"] = {"capacity_gib": rng.choice([64, 1024])}
    if rng.random() < 0.5:
        doc["network"] = {
            "egress": rng.choice(["nat", "closed"]),
            "endpoints": rng.sample(["sqs", "lambda", "eks"], 2),
        }
    if rng.random() < 0.3:
        doc |= {"account": "123456789012", "tags": {"owner": "x y"}, "version": 1, "protect": False}
    if alone and rng.random() < 0.2:
        doc["regions"][regions[0]] |= rng.choice([
            {"pool": ["10.64.0.0/14"]}, {"pool": ["172.18.0.0/16", "100.64.0.0/16"]},
            {"set": {"network.egress_ports": [443, 8443]}}, {"vpc": vpc(rng, zones)},
        ])  # fmt: skip
    return doc


def vpc(rng: random.Random, zones: list[str]) -> dict:
    zone = zones[0] if zones else "use2-az1"
    subnets = [
        {"id": f"subnet-0123456{i}", "zone": zone, "cidr": f"10.200.{64 * i}.0/18", "purposes": purposes}
        for i, purposes in enumerate((["nodes"], ["storage", "endpoints", "public"], ["nodes", "storage"]))
    ]
    return {"id": "vpc-01234567", "cidrs": ["10.200.0.0/16"], "subnets": subnets[: rng.choice([2, 3])]}


def places(value: object) -> list[tuple[object, object]]:
    """Every spot in a file: what holds it, and its key there."""
    found: list[tuple[object, object]] = []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(inside):
        found += [(value, key), *places(below)]
    return found


def spoil(doc: dict, rng: random.Random) -> None:
    """One mistake, in place."""
    holder, key = rng.choice(places(doc))
    kind = rng.randrange(7)
    if kind == 0 and isinstance(holder, dict):
        word = str(key)
        cut = rng.randrange(len(word) + 1)
        holder[
            rng.choice([word[:cut] + word[cut + 1 :], f"{word[:cut]}x{word[cut:]}", word.upper(), 7, None])
        ] = holder.pop(key)
    elif kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder[key], int | float):
        holder[key] = rng.choice(
            [-holder[key], holder[key] + 1, holder[key] * 1000, str(holder[key]), [holder[key]]]
        )
    elif kind == 3:
        other, name = rng.choice(places(doc))
        holder[key] = copy.deepcopy(other[name])
    elif kind == 4 and isinstance(holder, dict):
        holder[
            rng.choice(
                ["zone", "count", "efa", "set", "lustre", "vpc", "pool", "role", "type", "associations"]
            )
        ] = rng.choice(ODD)
    elif kind == 5 and isinstance(holder[key], str):
        holder[key] = rng.choice(
            [holder[key][:-1], holder[key] + "x", holder[key] * 40, holder[key].upper(), *WORDS]
        )
    else:
        holder[key] = rng.choice(ODD)


def noisy(text: str, rng: random.Random) -> str:
    """What a slipped finger or a bad merge does to text."""
    for _ in range(rng.choice([1, 1, 2])):
        at, other = (rng.randrange(len(text) + 1) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + rng.choice(NOISE) + text[at:]
        elif kind == 1:
            text = text[: min(at, other)] + text[min(max(at, other), at + 30) :]
        elif kind == 2:
            text = text[:at]
        else:
            lines = text.splitlines(keepends=True) or [""]
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "".join(lines)
    return text


def draw(number: int) -> tuple[str, str]:
    """The kind and the text of one file."""
    rng = random.Random(number)
    doc = deployment(rng)
    kind = rng.choices(["valid", "spoilt", "noisy"], [4, 5, 1])[0]
    if kind == "spoilt":
        for _ in range(rng.choice([1, 1, 2, 5])):
            spoil(doc, rng)
    text = yaml.dump(
        doc, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, allow_unicode=True
    )
    return kind, noisy(text, rng) if kind == "noisy" else text


def is_told(path: str) -> bool:
    """Whether a path leads somewhere in the schema."""
    here, named = [Deployment], False
    for part in path.split("."):
        annotations = [m.model_fields[part].annotation for m in here if part in m.model_fields]
        if named:
            named = False
        elif annotations:
            found = sections_in(annotations[0])
            here, named = [m for m, _ in found], any(inside for _, inside in found)
        elif here or not part.isdigit():
            return False
    return True


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_file_is_planned_or_refused_in_words(batch, tmp_path):
    planned: dict[str, list[bool]] = {"valid": [], "spoilt": [], "noisy": []}
    path = tmp_path / "demo.yaml"
    for number in range(batch * FILES // BATCHES, (batch + 1) * FILES // BATCHES):
        kind, text = draw(number)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            loaded = load(path)
        except PlanError as error:
            assert error.problems, number
            for p in error.problems:
                assert all(
                    isinstance(part, str) and part.strip() for part in (p.path, p.given, p.allowed, p.fix)
                ), (number, p)
                unknown_key = p.given.startswith("`") or p.allowed == "no such key"
                elsewhere = p.path in (str(path), "the file") or p.path.startswith(("set ", "tags."))
                assert unknown_key or elsewhere or ".set" in p.path or is_told(p.path), (number, p)
            planned[kind].append(False)
        else:
            assert isinstance(loaded, Loaded)
            planned[kind].append(True)
    share = {kind: sum(outcomes) / len(outcomes) for kind, outcomes in planned.items()}
    assert share["valid"] > 0.9, share
    assert 0.02 < share["spoilt"] < 0.7, share
    assert sum(map(sum, planned.values())) > 0.2 * FILES / BATCHES, share


def test_the_command_line_refuses_in_lines_and_prints_every_plan(tmp_path, capsys):
    path, codes = tmp_path / "demo.yaml", []
    for number in range(0, FILES, 15):
        path.write_text(draw(number)[1], encoding="utf-8", errors="surrogatepass")
        page = ["--html", str(tmp_path / "map.html")] if number % 2 else ["--json"]
        codes.append(main(["plan", str(path), *page]))
        out, err = capsys.readouterr()
        assert codes[-1] in (0, 2), number
        assert "Traceback" not in out + err
        if codes[-1]:
            assert out == ""
            assert all(line.startswith("error: ") for line in err.splitlines()), err
        else:
            assert err == ""
            assert number % 2 or json.loads(out)["format"] == 1
    assert codes.count(0) > len(codes) / 5


def test_spoilt_locks_are_kept_or_refused_in_words(tmp_path):
    path, at = tmp_path / "demo.yaml", tmp_path / "demo.lock.yaml"
    path.write_text(Path(__file__).parent.parent.joinpath("deployments/quickstart.yaml").read_text())
    assert main(["plan", str(path), "--lock"]) == 0
    good, outcomes = yaml.safe_load(at.read_text()), []
    for number in range(400):
        rng = random.Random(number)
        body = copy.deepcopy(good)
        spoil(body, rng)
        text = yaml.safe_dump(body)
        at.write_text(noisy(text, rng) if number % 4 == 0 else text, encoding="utf-8", errors="surrogatepass")
        try:
            load(path)
        except PlanError as error:
            assert all(all((p.path, p.given, p.allowed, p.fix)) for p in error.problems), number
            outcomes.append(False)
        else:
            outcomes.append(True)
    assert 20 < sum(outcomes) < 380
