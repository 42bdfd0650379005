"""Lustre plans: what is sold, what is refused, and that every advice given is sound."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from functools import cache
from importlib import resources
from math import inf, nan

import botocore.session
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainshed.planning import lustre, lustre_rules, root_squash
from trainshed.planning.problems import Problem
from trainshed.planning.storage import (
    AssociationPlan,
    LustrePlan,
    ReadCache,
    automatic_metadata_iops,
    capacity_neighbours,
    capacity_step_gib,
    check_lustre,
    gib_from_tib,
    quota_warnings,
    tib_from_gib,
)

AT = "storage.lustre.main"
TIERS = (125, 250, 500, 1000)
LINK = AssociationPlan(file_system_path="/data", bucket="corpus")
SSD = LustrePlan(name="main", zone="use2-az1", capacity_gib=4_800, throughput_mbps_per_tib=250)
EFA = replace(SSD, efa=True, capacity_gib=38_400)
TIERING = LustrePlan(
    name="cold",
    zone="use2-az1",
    storage_class="intelligent-tiering",
    throughput_mbps=8_000,
    read_cache=ReadCache(mode="proportional"),
    metadata_iops=6_000,
)


@cache
def api(shape: str, member: str = "") -> tuple[str, dict]:
    """Documentation text and constraints of one FSx API shape, as botocore ships them."""
    found = botocore.session.get_session().get_service_model("fsx").shape_for(shape)
    found = found.members[member] if member else found
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", found.documentation)), found.metadata


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


@cache
def sold_without_efa() -> list[int]:
    text, _ = api("CreateFileSystemRequest", "StorageCapacity")
    return numbers(re.search(r"PERSISTENT_1 deployment types using SSD.*?values are (.*?)\. ", text)[1])


# FSx for Lustre User Guide, "Getting started", storage capacity of EFA-enabled Persistent SSD.
SOLD_WITH_EFA = "4.8 TiB, 9.6 TiB, 19.2 TiB, and 38.4 TiB for 1000, 500, 250, and 125 MBps/TiB"


def legal_by_aws(gib: int, *, efa: bool, tier: int) -> bool:
    """The oracle: the two sentences in which AWS says what it sells."""
    if efa:
        steps, tiers = (re.findall(r"[\d.]+", half) for half in SOLD_WITH_EFA.split(" for "))
        step = round(1000 * float(steps[tiers.index(str(tier))]))
        return gib > 0 and gib % step == 0
    smallest, second, step = sold_without_efa()
    return gib == smallest or (gib >= second and (gib - second) % step == 0)


def least_by_cfn_lint() -> int:
    package = resources.files("cfnlint.data.schemas.extensions.aws_fsx_filesystem")
    rules = json.loads((package / "storage_capacity.json").read_text())["allOf"]
    (lustre_rule,) = [r for r in rules if r["if"]["properties"]["FileSystemType"]["enum"] == ["LUSTRE"]]
    return lustre_rule["then"]["properties"]["StorageCapacity"]["minimum"]


def paths(problems: list[Problem]) -> list[str]:
    assert all(part.strip() for p in problems for part in (p.path, p.given, p.allowed, p.fix))
    return [problem.path.removeprefix(f"{AT}.") for problem in problems]


@pytest.mark.parametrize("plan", [SSD, EFA, TIERING, replace(TIERING, efa=True)])
def test_legal_plans_have_no_problems(plan: LustrePlan):
    assert check_lustre(plan, path=AT) == []


def test_the_message_names_the_neighbours():
    (problem,) = check_lustre(replace(EFA, capacity_gib=40_000), path=AT)
    assert str(problem) == (
        "storage.lustre.main.capacity_tib: given 40; "
        "allowed 38.4 or 57.6 (EFA at 250 MB/s/TiB comes in steps of 19.2 TiB); "
        "fix: set capacity_tib to 57.6, or set efa to false for steps of 2.4 TiB"
    )


@pytest.mark.parametrize(
    ("tib", "efa", "tier", "neighbours"),
    [
        (0.5, False, 125, "1.2 or more"),
        (1.3, False, 125, "1.2 or 2.4"),
        (3.6, False, 500, "2.4 or 4.8"),
        (100, False, 1000, "98.4 or 100.8"),
        (1.2, True, 125, "38.4 or more"),
        (40, True, 125, "38.4 or 76.8"),
        (40, True, 250, "38.4 or 57.6"),
        (12, True, 500, "9.6 or 19.2"),
        (2.4, True, 1000, "4.8 or more"),
        (7.2, True, 1000, "4.8 or 9.6"),
    ],
)
def test_capacity_between_the_steps(tib: float, efa: bool, tier: int, neighbours: str):
    plan = replace(SSD, capacity_gib=gib_from_tib(tib), efa=efa, throughput_mbps_per_tib=tier)
    (problem,) = check_lustre(plan, path=AT)
    assert problem.path == f"{AT}.capacity_tib"
    assert problem.allowed.startswith(f"{neighbours} (")


@settings(deadline=None)
@given(st.sampled_from(TIERS), st.booleans(), st.integers(-10, 1_000_000))
@example(125, True, 38_399)
@example(1000, False, 1_201)
def test_neighbours_are_accepted_and_bracket_the_request(tier: int, efa: bool, gib: int):
    around = capacity_neighbours(gib, efa=efa, tier=tier)
    plan = replace(SSD, throughput_mbps_per_tib=tier, efa=efa)
    for legal in around:
        assert check_lustre(replace(plan, capacity_gib=legal), path=AT) == []
        assert legal_by_aws(legal, efa=efa, tier=tier)
        assert legal >= least_by_cfn_lint()
    accepted = check_lustre(replace(plan, capacity_gib=gib), path=AT) == []
    assert accepted == (around == (gib,)) == legal_by_aws(gib, efa=efa, tier=tier)
    if len(around) == 2:
        assert around[0] < gib < around[1]
        assert around[1] - around[0] <= capacity_step_gib(efa=efa, tier=tier)
        between = range(around[0] + 100, around[1], 100)
        assert not any(legal_by_aws(other, efa=efa, tier=tier) for other in between)
    elif not accepted:
        assert gib < around[0]


def test_efa_at_an_unknown_tier_has_no_steps():
    with pytest.raises(ValueError, match="no throughput tier of 300"):
        capacity_step_gib(efa=True, tier=300)
    problems = check_lustre(replace(EFA, throughput_mbps_per_tib=300), path=AT)
    assert paths(problems) == ["throughput_mbps_per_tib"]


@pytest.mark.parametrize(
    ("tib", "gib"),
    [
        (1.2, 1_200), (2.4, 2_400), (38.4, 38_400), (57.6, 57_600), (100.8, 100_800), (40, 40_000),
        (Decimal("1.2"), 1_200), (Decimal("1.20"), 1_200), (0.1 + 0.2, None), (Decimal("1.2345"), None),
        (Decimal("1.20000000000000000000000000000000001"), None), (0, None), (-1.2, None), (nan, None),
        (inf, None), (Decimal("Infinity"), None),
    ],
)  # fmt: skip
def test_tib_as_the_console_counts_them(tib: Decimal | float, gib: int | None):
    assert gib_from_tib(tib) == gib


@given(st.integers(1, 10**9))
def test_tib_and_back(gib: int):
    assert gib_from_tib(Decimal(tib_from_gib(gib))) == gib
    assert gib_from_tib(float(tib_from_gib(gib))) == gib


@pytest.mark.parametrize(
    ("plan", "object_servers", "metadata_servers"),
    [
        (replace(SSD, capacity_gib=1_200), 1, 1),
        (replace(SSD, capacity_gib=2_400), 1, 1),
        (replace(SSD, capacity_gib=100_800), 42, 4),
        (replace(EFA, capacity_gib=38_400, throughput_mbps_per_tib=125), 1, 1),
        (replace(EFA, capacity_gib=38_400, throughput_mbps_per_tib=1000), 8, 1),
        (replace(EFA, capacity_gib=96_000, throughput_mbps_per_tib=1000), 20, 4),
        (replace(SSD, metadata_iops=192_000), 2, 16),
        (TIERING, 2, 1),
        (replace(TIERING, metadata_iops=24_000), 2, 2),
    ],
)
def test_servers_and_addresses(plan: LustrePlan, object_servers: int, metadata_servers: int):
    assert check_lustre(plan, path=AT) == []
    assert (plan.object_servers, plan.metadata_servers) == (object_servers, metadata_servers)
    assert plan.addresses == object_servers + metadata_servers


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_efa_has_one_object_server_per_step(tier: int, steps: int):
    plan = replace(EFA, throughput_mbps_per_tib=tier, capacity_gib=steps * 4_800_000 // tier)
    assert check_lustre(plan, path=AT) == []
    assert plan.object_servers == steps
    assert plan.aggregate_throughput_mbps == steps * 4_800


def test_growth_takes_more_addresses():
    assert replace(SSD, capacity_gib=48_000).addresses_at(100_800) == 42 + 4
    assert replace(SSD, metadata_iops=6_000).addresses_at(48_000) == 20 + 2
    assert TIERING.addresses_at(40_000) == 10 + 1


@given(st.integers(1, 160), st.integers(1, 160))
def test_addresses_never_shrink_with_growth(one: int, other: int):
    small, large = sorted((one * 2_400, other * 2_400))
    plan = replace(SSD, capacity_gib=small)
    assert plan.addresses == plan.addresses_at(small) <= plan.addresses_at(large)


def test_throughput_is_counted_in_the_consoles_tib():
    assert replace(SSD, capacity_gib=2_400, throughput_mbps_per_tib=125).aggregate_throughput_mbps == 300
    assert TIERING.aggregate_throughput_mbps == 8_000


@pytest.mark.parametrize("plan", [replace(SSD, capacity_gib=None), replace(TIERING, throughput_mbps=None)])
def test_an_unsized_plan_has_no_servers(plan: LustrePlan):
    for derived in ("object_servers", "metadata_servers", "addresses", "aggregate_throughput_mbps"):
        with pytest.raises(ValueError, match=plan.name):
            getattr(plan, derived)


def test_the_version_mounts_on_current_images():
    assert (SSD.version, SSD.deployment_type) == ("2.15", "PERSISTENT_2")


@pytest.mark.parametrize(
    ("gib", "iops"),
    [
        (1_200, 1_500), (2_400, 3_000), (4_800, 6_000), (9_600, 6_000), (12_000, 12_000), (45_600, 12_000),
        (48_000, 24_000), (50_400, 24_000), (72_000, 36_000), (384_000, 192_000), (960_000, 192_000),
    ],
)  # fmt: skip
def test_automatic_metadata(gib: int, iops: int):
    assert automatic_metadata_iops(gib) == iops


REFUSED = [
    (replace(SSD, capacity_gib=None), "capacity_tib", "1.2 or more"),
    (replace(EFA, capacity_gib=None), "capacity_tib", "19.2 or more"),
    (replace(SSD, throughput_mbps_per_tib=None), "throughput_mbps_per_tib", "125, 250, 500 or 1000"),
    (replace(SSD, throughput_mbps_per_tib=200), "throughput_mbps_per_tib", "125, 250, 500 or 1000"),
    (replace(SSD, throughput_mbps=4_000), "throughput_mbps", "belongs to storage class intelligent"),
    (replace(SSD, read_cache=ReadCache(mode="no-cache")), "read_cache", "belongs to storage class intell"),
    (replace(SSD, metadata_iops=4_000), "metadata_iops", "3000 or 6000"),
    (replace(SSD, metadata_iops=30_000), "metadata_iops", "24000 or 36000"),
    (replace(SSD, metadata_iops=204_000), "metadata_iops", "192000 (the steps are 1500, 3000, 6000 and 12"),
    (replace(SSD, metadata_iops=3_000), "metadata_iops", "6000 or more"),
    (replace(EFA, capacity_gib=76_800, metadata_iops=24_000), "metadata_iops", "36000 or more"),
    (replace(SSD, storage_class="hdd"), "storage_class", "ssd or intelligent-tiering"),
    (replace(SSD, compression="zstd"), "compression", "lz4 or none"),
    (replace(SSD, backup_days=91), "backup_days", "0 (no automatic backups) to 90"),
    (replace(SSD, backup_days=-1), "backup_days", "0 (no automatic backups) to 90"),
    (replace(SSD, backup_days=7, associations=(LINK,)), "backup_days", "0: FSx takes no backups"),
    (replace(SSD, maintenance="sunday 03:00"), "maintenance", "d:HH:MM"),
    (replace(SSD, maintenance="8:03:00"), "maintenance", "d:HH:MM"),
    (replace(SSD, root_squash="nobody"), "root_squash", "uid:gid"),
    (replace(SSD, root_squash="0:65534"), "root_squash", "uid:gid"),
    (replace(SSD, root_squash="65534:0"), "root_squash", "uid:gid"),
    (replace(SSD, root_squash="1:4294967295"), "root_squash", "uid:gid"),
    (replace(SSD, no_squash_nids=("10.0.1.6@tcp",)), "no_squash_nids", "none while root squash is off"),
    (replace(TIERING, capacity_gib=4_800), "capacity_tib", "belongs to storage class ssd"),
    (replace(TIERING, throughput_mbps_per_tib=125), "throughput_mbps_per_tib", "storage class ssd"),
    (replace(TIERING, throughput_mbps=None), "throughput_mbps", "4000 MB/s"),
    (replace(TIERING, throughput_mbps=1_000), "throughput_mbps", "4000 MB/s"),
    (replace(TIERING, throughput_mbps=10_000), "throughput_mbps", "8000 or 12000 MB/s"),
    (replace(TIERING, throughput_mbps=2_004_000), "throughput_mbps", "2000000 MB/s"),
    (replace(TIERING, efa=True, throughput_mbps=2_000), "throughput_mbps", "which EFA needs too"),
    (replace(TIERING, read_cache=None), "read_cache.mode", "no-cache, proportional or user"),
    (replace(TIERING, read_cache=ReadCache(mode="big")), "read_cache.mode", "no-cache, proportional or user"),
    (replace(TIERING, read_cache=ReadCache(mode="user")), "read_cache.size_gib", "64 to 262144 GiB"),
    (replace(TIERING, read_cache=ReadCache(mode="user", size_gib=63)), "read_cache.size_gib", "64 to 262144"),
    (replace(TIERING, read_cache=ReadCache(mode="user", size_gib=262_145)), "read_cache.size_gib", "262144"),
    (
        replace(TIERING, read_cache=ReadCache(mode="no-cache", size_gib=64)),
        "read_cache.size_gib",
        "mode user",
    ),
    (replace(TIERING, metadata_iops=None), "metadata_iops", "no automatic mode"),
    (replace(TIERING, metadata_iops=3_000), "metadata_iops", "6000 (the steps are 6000 and 12000"),
    (replace(TIERING, metadata_iops=9_000), "metadata_iops", "6000 or 12000"),
    (replace(TIERING, associations=(LINK,)), "associations", "cannot be linked to S3"),
]


@pytest.mark.parametrize(("plan", "path", "allowed"), REFUSED)
def test_refused(plan: LustrePlan, path: str, allowed: str):
    problems = check_lustre(plan, path=AT)
    assert paths(problems) == [path]
    assert allowed in problems[0].allowed


ACCEPTED = [
    replace(SSD, metadata_iops=6_000),
    replace(SSD, metadata_iops=192_000),
    replace(SSD, compression="none"),
    replace(SSD, backup_days=90),
    replace(SSD, associations=(LINK,)),
    replace(SSD, maintenance="1:00:00"),
    replace(SSD, root_squash="65534:65534", no_squash_nids=("10.0.1.6@tcp", "10.0.[2-10].[1-255]@tcp")),
    replace(SSD, root_squash="0:0"),
    replace(SSD, root_squash="4294967294:1"),
    replace(TIERING, throughput_mbps=4_000),
    replace(TIERING, throughput_mbps=2_000_000),
    replace(TIERING, read_cache=ReadCache(mode="no-cache")),
    replace(TIERING, read_cache=ReadCache(mode="user", size_gib=64)),
    replace(TIERING, read_cache=ReadCache(mode="user", size_gib=262_144)),
    replace(TIERING, metadata_iops=12_000),
    replace(TIERING, backup_days=7),
]


@pytest.mark.parametrize("plan", ACCEPTED)
def test_accepted(plan: LustrePlan):
    assert check_lustre(plan, path=AT) == []


def test_squashed_clients_are_counted_and_read():
    crowd = tuple(f"10.0.1.{n}@tcp" for n in range(1, 66))
    squashed = replace(SSD, root_squash="65534:65534")
    assert check_lustre(replace(squashed, no_squash_nids=crowd[:64]), path=AT) == []
    assert paths(check_lustre(replace(squashed, no_squash_nids=crowd), path=AT)) == ["no_squash_nids"]
    strangers = replace(squashed, no_squash_nids=("10.0.1.6@tcp", "10.0.1.6@efa", "host@tcp"))
    assert paths(check_lustre(strangers, path=AT)) == ["no_squash_nids.1", "no_squash_nids.2"]


def test_local_zones_sell_less():
    assert check_lustre(SSD, path=AT, in_local_zone=True) == []
    fast = replace(SSD, throughput_mbps_per_tib=1000)
    (problem,) = check_lustre(fast, path=AT, in_local_zone=True)
    assert problem.allowed == "125 or 250 MB/s/TiB (Persistent 2 SSD in a Local Zone)"
    assert paths(check_lustre(EFA, path=AT, in_local_zone=True)) == ["efa"]
    small = replace(EFA, capacity_gib=4_800)  # a step without EFA: only one thing is wrong
    assert paths(check_lustre(small, path=AT, in_local_zone=True)) == ["efa"]
    assert paths(check_lustre(TIERING, path=AT, in_local_zone=True)) == ["storage_class"]


def test_problems_come_together():
    plan = replace(EFA, capacity_gib=40_000, metadata_iops=5_000, backup_days=3, associations=(LINK,))
    assert paths(check_lustre(plan, path=AT)) == ["capacity_tib", "metadata_iops", "backup_days"]


def test_quotas_warn_and_do_not_refuse():
    full = replace(SSD, capacity_gib=100_800)
    assert quota_warnings([full, TIERING], path="storage.lustre") == []
    beyond = [replace(EFA, capacity_gib=115_200), *[replace(TIERING, throughput_mbps=40_000)] * 3]
    assert [str(w) for w in quota_warnings(beyond, path="storage.lustre")] == [
        "storage.lustre: given 115200 GiB of Persistent 2 SSD; allowed 100800 GiB of Persistent 2 SSD per "
        "account and region by default; fix: ask Service Quotas (Amazon FSx) for 115200 before deploying, "
        "unless that was granted",
        "storage.lustre: given 120000 MB/s of Intelligent-Tiering; allowed 100000 MB/s of Intelligent-"
        "Tiering per account and region by default; fix: ask Service Quotas (Amazon FSx) for 120000 before "
        "deploying, unless that was granted",
    ]
    crowd = [replace(SSD, capacity_gib=1_200)] * 101
    assert quota_warnings(crowd, path="storage.lustre")[0].given == "101 file systems"


def follow(plan: LustrePlan, problem: Problem) -> LustrePlan:
    """The plan after the first advice of a problem's fix is taken literally."""
    path = problem.path.removeprefix(f"{AT}.")
    if path.startswith("no_squash_nids."):
        index = int(path.rpartition(".")[2])
        nids = (*plan.no_squash_nids[:index], "10.0.1.6@tcp", *plan.no_squash_nids[index + 1 :])
        return replace(plan, no_squash_nids=nids)
    if path == "maintenance":
        return replace(plan, maintenance=re.search(r'"(.+)"', problem.fix)[1])
    dropped = re.match(r"drop (?:the )?(\w+)", problem.fix)
    if dropped and dropped[1] == "size_gib":
        return replace(plan, read_cache=replace(plan.read_cache, size_gib=None))
    if dropped:
        field = {"capacity_tib": "capacity_gib"}.get(dropped[1], dropped[1])
        return replace(plan, **{field: () if field == "associations" else None})
    field, text = re.match(r'set ([\w.]+) to "?([^",\s]+)', problem.fix).groups()
    if field == "capacity_tib":
        return replace(plan, capacity_gib=gib_from_tib(Decimal(text)))
    value = {"false": False}.get(text, int(text) if text.isdecimal() else text)
    if field.startswith("read_cache."):
        now = plan.read_cache or ReadCache(mode="proportional")
        return replace(plan, read_cache=replace(now, **{field.removeprefix("read_cache."): value}))
    return replace(plan, **{field: value})


def maybe(*values: object) -> st.SearchStrategy:
    return st.sampled_from((None, *values))


PLANS = st.builds(
    LustrePlan,
    name=st.just("main"),
    zone=st.just("use2-az1"),
    storage_class=st.sampled_from(("ssd", "intelligent-tiering", "hdd")),
    capacity_gib=st.none() | st.integers(0, 500_000) | st.integers(0, 200).map(lambda n: n * 2_400),
    throughput_mbps_per_tib=maybe(12, 125, 250, 500, 1000, 2000),
    throughput_mbps=maybe(1_000, 4_000, 6_000, 8_000, 3_000_000),
    read_cache=st.none()
    | st.builds(
        ReadCache,
        mode=st.sampled_from(("no-cache", "proportional", "user", "auto")),
        size_gib=maybe(1, 64, 500_000),
    ),
    efa=st.booleans(),
    metadata_iops=st.none() | st.integers(0, 250_000) | st.sampled_from((1_500, 6_000, 12_000, 48_000)),
    compression=st.sampled_from(("lz4", "none", "gzip")),
    backup_days=st.sampled_from((-1, 0, 7, 100)),
    root_squash=maybe("65534:65534", "0:0", "0:1", "root"),
    no_squash_nids=st.sampled_from(((), ("10.0.1.6@tcp",), ("10.0.1.6@tcp", "nobody"))),
    associations=st.sampled_from(((), (LINK,))),
    maintenance=maybe("1:05:00", "later"),
)


@settings(max_examples=300, deadline=None)
@given(PLANS, st.booleans())
def test_following_the_advice_leads_to_a_legal_plan(plan: LustrePlan, in_local_zone: bool):
    for _ in range(6):
        problems = check_lustre(plan, path=AT, in_local_zone=in_local_zone)
        paths(problems)
        if not problems:
            break
        for problem in problems:
            plan = follow(plan, problem)
    assert check_lustre(plan, path=AT, in_local_zone=in_local_zone) == []
    assert plan.addresses >= 2


def test_figures_agree_with_the_api():
    tiers, _ = api("CreateFileSystemLustreConfiguration", "PerUnitStorageThroughput")
    assert tuple(numbers(tiers.partition("PERSISTENT_2 SSD storage:")[2])) == lustre.TIERS_MBPS_PER_TIB
    _, throughput = api("ThroughputCapacityMbps")
    assert (throughput["min"], throughput["max"]) == (lustre.TIERING_STEP_MBPS, lustre.TIERING_MOST_MBPS)
    _, iops = api("MetadataIops")
    assert (lustre.METADATA_IOPS["ssd"][0], lustre.METADATA_IOPS["ssd"][-1]) == (iops["min"], iops["max"])
    text, _ = api("CreateFileSystemLustreMetadataConfiguration", "Iops")
    ssd = re.search(r"For SSD file systems, valid values are (.*?)\. ", text)[1]
    assert numbers(ssd) == [*lustre.METADATA_IOPS["ssd"][:4], 12_000, lustre.MOST_METADATA_IOPS]
    cache_text, _ = api("LustreReadCacheConfiguration", "SizeGiB")
    assert numbers(cache_text)[-3:] == [*lustre.CACHE_GIB_PER_1000_MBPS, 1_000]
    _, nids = api("LustreNoSquashNids")
    assert nids["max"] == root_squash.MOST_NO_SQUASH_NIDS
    _, kinds = api("DataCompressionType")
    assert {kind.lower() for kind in kinds["enum"]} == set(lustre.COMPRESSIONS)
    assert str(root_squash.LARGEST_ID) in api("LustreRootSquashConfiguration", "RootSquash")[0]
    assert lustre_rules.QUOTA_SSD_GIB % lustre.SSD_STEP_GIB == 0


def matches(shape: str, text: str) -> bool:
    _, rule = api(shape)
    return bool(re.fullmatch(rule["pattern"].strip("^$"), text)) and rule["min"] <= len(text) <= rule["max"]


OCTETS = st.lists(st.sampled_from(["10", "0", "", "[2-10]", "[1-255]", "x"]), min_size=3, max_size=5)
NIDS = st.builds("{}@{}".format, OCTETS.map(".".join), st.sampled_from(["tcp", "tcp1", "efa", "tcp\n"]))


@settings(deadline=None)
@given(NIDS)
def test_clients_are_read_as_the_api_reads_them(nid: str):
    plan = replace(SSD, root_squash="1:1", no_squash_nids=(nid,))
    assert (check_lustre(plan, path=AT) == []) == matches("LustreNoSquashNid", nid)


@settings(deadline=None)
@given(st.from_regex(r"[0-9]:?[0-3][0-9]:?[0-6][0-9]", fullmatch=True) | st.text(max_size=8))
def test_windows_are_read_as_the_api_reads_them(window: str):
    accepted = check_lustre(replace(SSD, maintenance=window), path=AT) == []
    assert accepted == matches("WeeklyTime", window)
