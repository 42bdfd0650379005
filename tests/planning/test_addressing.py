"""The address planner against an oracle that knows AWS's rules and, on tiny pools, every possible plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.planning import address_oracle as oracle
from trainshed.planning.addressing import allocate, check_pool, lock_of
from trainshed.planning.cidr import accepts_secondary, cover
from trainshed.planning.model import AddressLock, AddressPlan, Claim, GivenSubnet, LockedSubnet
from trainshed.planning.problems import PlanError, Problem
from trainshed.planning.seating import verify

# The same cases every time: a failure here must come from the change under test.
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

LARGE = 50
ZONES = ("use2-az1", "use2-az2", "use2-az3")
# Each side of a netmask's limit, where an off-by-one would show.
LIMITS = (0, 1, 10, 11, 12, 26, 27, 28, 58, 59, 60, 122, 123, 124, 250, 251, 252)

ONE_PAGE = [
    ("10.1.0.0/24",),
    ("10.9.255.128/25",),
    ("192.168.4.64/26",),
    ("10.8.0.32/27",),
    ("100.64.0.0/25",),
    ("172.18.0.0/26", "172.18.0.128/26"),
    ("10.1.0.0/25", "10.1.0.128/26"),
    ("10.1.1.0/27", "10.1.0.192/26", "10.1.1.64/28"),
]
TWO_PAGES = [
    ("10.1.0.0/25", "10.2.0.0/26"),
    ("10.2.255.192/26", "10.1.0.0/27"),
    ("10.1.0.0/26", "10.2.0.0/26"),
    ("192.168.0.0/26", "100.64.0.0/26"),
    ("172.16.255.128/25", "172.18.0.0/26", "172.18.0.64/27"),
    ("10.1.0.0/26", "10.2.0.0/27"),
]


def nets(*texts: str) -> list[IPv4Network]:
    return [IPv4Network(t) for t in texts]


def pages(pool: Sequence[IPv4Network]) -> int:
    return len({oracle.page(oracle.span(n)) for n in pool})


def claim(
    name: str, needed: int, reserved: int = 0, *, cell: str | None = None, zone: str = ZONES[0], **more
) -> Claim:
    kind = {"purpose": "nodes", "path": f"clusters.{name}", **more}
    return Claim(name=name, zone=zone, needed=needed, reserved=reserved, cell=cell, **kind)


def refusal(claims: Sequence[Claim], **how) -> tuple[Problem, ...]:
    with pytest.raises(PlanError) as caught:
        allocate(claims, **how)
    return caught.value.problems


def attempt(claims: Sequence[Claim], **how) -> AddressPlan | PlanError:
    try:
        return allocate(claims, **how)
    except PlanError as error:
        mute = [p for p in error.problems if not (p.path and p.given and p.allowed and p.fix)]
        return (
            error if error.problems and not mute else pytest.fail(f"a refusal that does not say why: {mute}")
        )


@st.composite
def claim_lists(
    draw,
    *,
    most: int,
    largest: int,
    least: int = 0,
    cells: Sequence[str | None] = (None, None, "a", "b"),
    zones: Sequence[str] = ZONES,
    prefix: str = "g",
):
    limits = [n for n in LIMITS if least <= n <= largest]
    amount = st.one_of(st.sampled_from(limits), st.integers(least, largest))
    return [
        Claim(
            name=f"{prefix}{i}",
            zone=draw(st.sampled_from(zones)),
            purpose=draw(st.sampled_from(("nodes", "storage"))),
            needed=draw(amount),
            reserved=draw(amount),
            cell=draw(st.sampled_from(cells)),
            path=f"claims.{i}",
        )
        for i in range(draw(st.integers(1, most)))
    ]


@st.composite
def locks(draw, pool: Sequence[IPv4Network]) -> AddressLock:
    """Any lock that a tiny pool allows, not only those that the planner would make."""

    def some(within: IPv4Network, most: int) -> list[IPv4Network]:
        found: list[IPv4Network] = []
        for _ in range(draw(st.integers(0, most))):
            prefix = draw(st.integers(within.prefixlen, 28))
            net = draw(st.sampled_from(list(within.subnets(new_prefix=prefix))))
            if oracle.apart(map(oracle.span, (*found, net))):
                found.append(net)
        return found

    blocks = [b for net in pool for b in some(net, 3)]
    subnets = [s for block in blocks for s in some(block, 2)]
    locked = {
        f"l{i}": LockedSubnet(zone=draw(st.sampled_from(ZONES)), purpose="nodes", cidr=cidr)
        for i, cidr in enumerate(subnets)
    }
    primary = [b for b in blocks if not b.subnet_of(IPv4Network("100.64.0.0/10"))]
    return AddressLock(blocks=(*primary, *(b for b in blocks if b not in primary)), subnets=locked)


@given(
    claims=claim_lists(most=14, largest=70_000),
    pool=st.sampled_from([
        ("10.8.0.0/13",),
        ("10.0.0.0/12",),
        ("172.16.0.0/12",),
        ("10.1.0.0/16", "10.5.0.0/18"),
        ("192.168.0.0/16", "100.64.0.0/14"),
        ("100.64.0.0/15", "10.3.0.0/16"),
    ]),
    quota=st.sampled_from((1, 2, 3, 5, 50)),
)  # fmt: skip
@settings(FIXED, max_examples=400)
def test_a_fresh_plan_keeps_every_rule(claims, pool, quota):
    found = attempt(claims, pool=nets(*pool), block_quota=quota)
    if isinstance(found, AddressPlan):
        assert oracle.faults(found, claims, pool=nets(*pool), quota=quota) == []
    elif all(c.cell is None for c in claims) and quota == LARGE and pool == ("10.8.0.0/13",):
        # Powers of two fill free pages without waste, so the sum alone decides.
        sizes = [oracle.smallest_subnet(oracle.want(c)) for c in claims]
        assert None in sizes or sum(s or 0 for s in sizes) > 8 * 65536


@given(data=st.data())
@settings(FIXED, max_examples=400)
def test_a_tiny_pool_is_refused_only_when_nothing_packs(data):
    pool = nets(*data.draw(st.sampled_from(ONE_PAGE + TWO_PAGES)))
    # Which /16 a new cell goes to is bin packing, where the planner is only good, not perfect.
    cells = (None, None, "a", "b") if pages(pool) == 1 else (None,)
    claims = data.draw(claim_lists(most=7, largest=60, cells=cells))
    found = attempt(claims, pool=pool, block_quota=LARGE)
    assert isinstance(found, AddressPlan) == oracle.packs(claims, pool), found
    if isinstance(found, AddressPlan):
        assert oracle.faults(found, claims, pool=pool, quota=LARGE) == []


@given(data=st.data())
@settings(FIXED, max_examples=400)
def test_any_lock_is_kept_and_refused_only_when_nothing_packs(data):
    pool = nets(*data.draw(st.sampled_from(ONE_PAGE + TWO_PAGES)))
    lock = data.draw(locks(pool))
    tenants = []
    for name, locked in lock.subnets.items():
        over = data.draw(st.sampled_from((0, 0, 0, 9)))
        amount = st.integers(0, oracle.usable(locked.cidr.num_addresses) + over)
        cell = data.draw(st.sampled_from((None, None, "a", "b")))
        zone = data.draw(st.sampled_from((locked.zone,) * 9 + ZONES[:1]))
        if data.draw(st.integers(0, 4)):
            tenants.append(claim(name, data.draw(amount), data.draw(amount), cell=cell, zone=zone))
    cells = (None, "a", "b") if pages(pool) == 1 else (None, *sorted({t.cell for t in tenants if t.cell}))
    largest = data.draw(st.sampled_from((11, 27, 60)))
    claims = [*tenants, *data.draw(claim_lists(most=5, largest=largest, cells=cells))]
    found = attempt(claims, pool=pool, lock=lock, block_quota=LARGE)
    wrong = oracle.outgrown(claims, lock) + oracle.moved(claims, lock) + oracle.torn(claims, lock)
    if isinstance(found, AddressPlan):
        assert not wrong
        assert oracle.faults(found, claims, pool=pool, lock=lock, quota=LARGE) == []
    else:
        assert wrong or not oracle.packs(claims, pool, lock), found


@given(data=st.data())
@settings(FIXED, max_examples=300)
def test_order_of_the_claims_means_nothing(data):
    # Two pages nearly full, where who comes first decides the page.
    crowded = [(("10.1.0.0/26", "10.2.0.0/25"), 28), (("10.1.0.0/26", "10.2.0.0/24"), 60)]
    where, largest = data.draw(st.sampled_from([(("10.8.0.0/13",), 3000), *crowded]))
    pool = nets(*where)
    claims = data.draw(claim_lists(most=8, largest=largest))
    shuffled = data.draw(st.permutations(claims))
    first, second = (attempt(c, pool=pool, block_quota=LARGE) for c in (claims, shuffled))
    assert isinstance(first, AddressPlan) == isinstance(second, AddressPlan)
    assume(isinstance(first, AddressPlan))
    assert first == second
    lock = lock_of(first)
    backwards = replace(lock, subnets=dict(reversed(lock.subnets.items())))
    more = [*claims, *data.draw(claim_lists(most=3, largest=28, prefix="h"))]
    grown = [
        attempt(data.draw(st.permutations(more)), pool=pool, lock=each, block_quota=LARGE)
        for each in (lock, backwards)
    ]
    assert grown[0] == grown[1] or str(grown[0]) == str(grown[1])


@given(data=st.data())
@settings(FIXED, max_examples=200)
def test_a_fresh_plan_of_one_page_takes_few_and_small_blocks(data):
    pools = ("10.1.0.0/24", "10.9.255.128/25", "192.168.4.64/26", "172.16.4.0/24")
    pool = nets(data.draw(st.sampled_from(pools)))
    claims = data.draw(claim_lists(most=6, largest=60))
    quota = data.draw(st.sampled_from((1, 2, 3, 5)))
    found = attempt(claims, pool=pool, block_quota=quota)
    assume(isinstance(found, AddressPlan))
    assert len(found.blocks) <= min(2, quota)
    assert found.reserved_addresses <= oracle.tightest_block(claims, pool)
    seats = [oracle.span(s.cidr) for s in found.subnets]
    most = 2 if quota > 2 else 1
    assert found.reserved_addresses == oracle.least_cover(seats, oracle.blocks_within(pool), most)


@given(data=st.data())
@settings(FIXED, max_examples=150)
def test_cover_is_the_least_that_exists(data):
    root = IPv4Network("10.1.0.0/16")
    usable = nets(*data.draw(st.sampled_from((("10.1.0.0/25",), ("10.1.0.0/26", "10.1.0.96/27")))))
    small = st.sampled_from([s for u in usable for s in u.subnets(new_prefix=28)])
    ranges = sorted(data.draw(st.sets(small, min_size=1, max_size=4)))
    taken = sorted(data.draw(st.sets(small, max_size=2)) - set(ranges))
    most = data.draw(st.integers(1, 3))
    free = [b for b in oracle.blocks_within(usable) if not any(oracle.meet(b, oracle.span(t)) for t in taken)]
    found = cover(root, ranges, usable, taken, most)
    least = oracle.least_cover([oracle.span(r) for r in ranges], free, most)
    assert (None if found is None else sum(b.num_addresses for b in found)) == least
    assert {oracle.span(b) for b in found or ()} <= set(free)


@given(data=st.data())
@settings(FIXED, max_examples=150)
def test_growth_that_was_declared_changes_nothing(data):
    claims = data.draw(claim_lists(most=8, largest=3000))
    pool = nets("10.8.0.0/13")
    plan = allocate(claims, pool=pool, block_quota=LARGE)
    grown = [replace(c, needed=data.draw(st.integers(c.needed, oracle.want(c)))) for c in claims]
    for lock in (None, lock_of(plan)):
        later = allocate(grown, pool=pool, lock=lock, block_quota=LARGE)
        assert later.blocks == plan.blocks
        assert [(s.claim, s.cidr) for s in later.subnets] == [(s.claim, s.cidr) for s in plan.subnets]
        assert not later.warnings


@given(
    first=st.integers(0, 700),
    over=st.integers(1, 400),
    pool=st.sampled_from(("10.8.0.0/13", "192.168.0.0/16")),
)
@settings(FIXED, max_examples=100)
def test_what_outgrows_its_locked_subnet_is_refused_with_the_exact_shortfall(first, over, pool):
    others = [claim("other", 40), claim("third", 90, zone=ZONES[1])]
    before = claim("group", first, ways_out=("fewer nodes",))
    lock = lock_of(allocate([before, *others], pool=nets(pool)))
    room = oracle.usable(lock.subnets["group"].cidr.num_addresses)
    full = allocate([replace(before, needed=room, reserved=room), *others], pool=nets(pool), lock=lock)
    assert not full.warnings
    [problem] = refusal([replace(before, needed=room + over), *others], pool=nets(pool), lock=lock)
    assert problem.path == "clusters.group"
    assert problem.given == f"group needs {room + over} addresses"
    assert f"{room} in its locked subnet {lock.subnets['group'].cidr} (short by {over})" in problem.allowed
    assert "second group" in problem.fix
    assert "fewer nodes" in problem.fix
    merely = allocate([replace(before, reserved=room + over), *others], pool=nets(pool), lock=lock)
    assert lock_of(merely) == lock
    assert [w for w in merely.warnings if "group" in w and str(room + over) in w and str(room) in w]


def test_what_changes_zone_or_purpose_is_refused():
    group = claim("group", 40)
    lock = lock_of(allocate([group], pool=nets("10.8.0.0/13")))
    for change in ({"zone": ZONES[1]}, {"purpose": "storage"}):
        [problem] = refusal([replace(group, **change)], pool=nets("10.8.0.0/13"), lock=lock)
        assert problem.path == "clusters.group"
        assert next(iter(change.values())) in problem.given
        assert f"nodes in {ZONES[0]}, where {lock.subnets['group'].cidr} is locked" in problem.allowed
        assert "new name" in problem.fix


def test_a_cell_whose_members_are_locked_apart_is_refused():
    groups = [claim("a", 60_000), claim("b", 60_000)]
    lock = lock_of(allocate(groups, pool=nets("10.8.0.0/13")))
    [problem] = refusal([replace(g, cell="lustre/fast") for g in groups], pool=nets("10.8.0.0/13"), lock=lock)
    assert (problem.path, problem.given) == ("clusters.b", "b is locked in 10.9.0.0/16")
    assert "10.8.0.0/16" in problem.allowed
    assert "new name" in problem.fix
    assert "efa off" in problem.fix


def test_a_cell_with_a_locked_member_has_first_call_on_its_page():
    pool = nets("10.1.0.0/26", "10.2.0.0/26")
    old = claim("lustre", 10, cell="lustre/fast", purpose="storage")
    lock = lock_of(allocate([old], pool=pool))
    claims = [old, claim("clients", 20, cell="lustre/fast"), claim("a", 27), claim("b", 27)]
    plan = allocate(claims, pool=pool, lock=lock)
    assert oracle.faults(plan, claims, pool=pool, lock=lock) == []


def test_the_largest_chooses_its_page_first():
    pool, claims = nets("10.1.0.0/26", "10.2.0.0/27"), [claim("a", 27), claim("b", 59)]
    assert oracle.faults(allocate(claims, pool=pool), claims, pool=pool) == []


def test_the_largest_takes_its_place_first():
    pool, claims = nets("10.1.0.0/27", "10.1.0.32/28"), [claim("a", 11), claim("b", 27)]
    lock = AddressLock(blocks=tuple(nets("10.1.0.0/27")))
    plan = allocate(claims, pool=pool, lock=lock)
    assert oracle.faults(plan, claims, pool=pool, lock=lock) == []


def test_no_room_says_how_much_is_missing():
    pool = nets("10.1.0.0/24")
    last = claim("c", 40, ways_out=("another zone",))
    [problem] = refusal([claim("a", 100), claim("b", 100), last], pool=pool)
    assert problem.path == "clusters.c"
    assert problem.given == f"c takes 64 addresses in {ZONES[0]}"
    assert problem.allowed == "0 left in the emptiest /16 of the pool (short by 64)"
    assert problem.fix == "another zone; or a larger `pool`"
    [problem] = refusal([claim("huge", 65_532, ways_out=("fewer nodes",))], pool=nets("10.8.0.0/13"))
    assert "65531, the largest subnet (/16) (short by 1)" in problem.allowed
    assert problem.fix == "fewer nodes"
    assert allocate([claim("huge", 65_531)], pool=nets("10.8.0.0/13")).blocks == tuple(nets("10.8.0.0/16"))


def test_a_cell_beyond_a_page_names_all_that_must_share_it():
    cell = [claim(n, 20_000, cell="lustre/fast") for n in "abc"]
    [problem] = refusal(cell, pool=nets("10.8.0.0/13"))
    assert problem.given == f"a with b, c in one /16 takes 98304 addresses in {ZONES[0]}"
    assert "65536 left in the emptiest /16 of the pool (short by 32768)" in problem.allowed


def test_more_blocks_than_the_quota_are_refused():
    claims = [claim(f"g{i}", 60_000) for i in range(6)]
    [problem] = refusal(claims, pool=nets("10.8.0.0/13"))
    assert problem.path == "network.block_quota"
    assert (problem.given, problem.allowed) == ("a plan of 6 VPC blocks", "5")
    assert "up to 50" in problem.fix
    assert len(allocate(claims, pool=nets("10.8.0.0/13"), block_quota=6).blocks) == 6
    claims = [claim(f"g{i}", 60_000) for i in range(51)]
    [problem] = refusal(claims, pool=nets("10.128.0.0/9"), block_quota=60)
    assert (problem.given, problem.allowed) == ("a plan of 51 VPC blocks", "50")


@pytest.mark.parametrize(
    ("pool", "held", "block"),
    [
        (("10.1.0.0/16",), ("10.1.0.0/24",), "10.1.1.0/24"),
        (("10.1.0.0/16",), ("10.1.4.0/22",), "10.1.0.0/22"),
        (("10.1.0.0/24", "10.2.0.0/26"), ("10.1.0.0/24",), "10.2.0.0/26"),
        (("10.1.0.0/25", "10.1.4.0/22"), ("10.1.0.64/26", "10.1.4.0/22"), "10.1.0.0/26"),
        (("10.1.0.0/16",), ("10.9.0.0/16",), "10.1.0.0/16"),
    ],
)
def test_a_later_block_doubles_the_vpc_as_far_as_pool_and_neighbours_allow(pool, held, block):
    full = {n: LockedSubnet(zone=ZONES[0], purpose="nodes", cidr=IPv4Network(n)) for n in held}
    lock = AddressLock(blocks=tuple(nets(*held)), subnets=full)
    claims = [*(claim(n, 11) for n in held), claim("new", 27)]
    plan = allocate(claims, pool=nets(*pool), lock=lock)
    assert [str(b) for b in plan.blocks] == [*held, block]
    assert oracle.faults(plan, claims, pool=nets(*pool), lock=lock) == []


def test_what_vanished_stays_retired_until_pruned():
    pool = nets("10.8.0.0/13")
    claims = [claim("a", 40), claim("b", 40)]
    lock = lock_of(allocate(claims, pool=pool))
    plan = allocate(claims[1:], pool=pool, lock=lock)
    gone = plan.subnet("a")
    assert (gone.retired, gone.cidr, gone.needed, gone.reserved) == (True, lock.subnets["a"].cidr, 0, 0)
    assert not plan.subnet("b").retired
    [warning] = plan.warnings
    assert str(gone.cidr) in warning
    assert "--prune" in warning
    assert lock_of(plan) == lock
    assert not allocate(claims, pool=pool, lock=lock_of(plan)).subnet("a").retired
    pruned = lock_of(plan, prune=True)
    assert set(pruned.subnets) == {"b"}
    assert pruned.blocks == lock.blocks
    assert allocate([claim("c", 40), claims[1]], pool=pool, lock=pruned).subnet("c").cidr == gone.cidr


@pytest.mark.parametrize(
    ("blocks", "subnets", "wrong"),
    [
        (["10.8.0.0/24"], ["10.8.0.0/26", "10.8.0.32/27"], "10.8.0.0/26 and 10.8.0.32/27 overlap"),
        (["10.8.0.0/24"], ["10.8.1.0/26"], "10.8.1.0/26 lies in no locked block"),
        ([], ["10.8.1.0/26"], "10.8.1.0/26 lies in no locked block"),
        (["10.8.0.0/24", "10.8.0.128/25"], ["10.8.0.0/26"], "10.8.0.0/24 and 10.8.0.128/25 overlap"),
    ],
)
def test_a_lock_that_contradicts_itself_is_refused(blocks, subnets, wrong):
    locked = {n: LockedSubnet(zone=ZONES[0], purpose="nodes", cidr=IPv4Network(n)) for n in subnets}
    lock = AddressLock(blocks=tuple(nets(*blocks)), subnets=locked)
    [problem] = refusal([], pool=nets("10.8.0.0/13"), lock=lock)
    assert (problem.path, problem.given) == ("network (lock file)", wrong)
    assert "version control" in problem.fix


class Edits(RuleBasedStateMachine):
    """A deployment edited for years. `given` remembers each subnet ever given out until it is pruned."""

    GROUPS = ("g0", "g1", "g2", "g3", "g4")
    SYSTEMS = ("lustre/a", "lustre/b")
    groups = st.sampled_from(GROUPS)
    systems = st.sampled_from(SYSTEMS)
    counts = st.one_of(st.sampled_from([n for n in LIMITS if n <= 124]), st.integers(1, 100))

    @initialize(
        pool=st.sampled_from(
            [*[("10.1.0.0/24",), ("10.1.0.0/22",), ("10.1.0.0/24", "10.2.0.0/24")], ("10.8.0.0/13",)]
        ),
        quota=st.sampled_from((2, 5, LARGE, LARGE)),
    )
    def begin(self, pool, quota):
        self.pool, self.quota = nets(*pool), quota
        self.claims: dict[str, Claim] = {}
        self.lock = AddressLock()
        self.given: dict[str, IPv4Network] = {}
        self.blocks: list[IPv4Network] = []

    def edit(self, claims: dict[str, Claim], *, prune: bool = False, keep: bool = True) -> None:
        before = (self.lock.blocks, dict(self.lock.subnets))
        asked = list(claims.values())
        found = attempt(asked, pool=self.pool, lock=self.lock, block_quota=self.quota)
        assert (self.lock.blocks, self.lock.subnets) == before
        wrong = (
            oracle.outgrown(asked, self.lock) + oracle.moved(asked, self.lock) + oracle.torn(asked, self.lock)
        )
        if isinstance(found, PlanError):
            self.excuse(found, asked, wrong)
            return
        assert not wrong
        assert oracle.faults(found, asked, pool=self.pool, lock=self.lock, quota=self.quota) == []
        for name, cidr in self.given.items():
            assert found.subnet(name).cidr == cidr
            assert found.subnet(name).retired == (name not in claims)
        if not keep:
            return
        self.claims, self.lock = claims, lock_of(found, prune=prune)
        self.blocks = [*self.blocks, *found.blocks[len(self.blocks) :]]
        self.given |= {s.claim: s.cidr for s in found.subnets}
        if prune:
            self.given = {name: cidr for name, cidr in self.given.items() if name in claims}

    def excuse(self, found: PlanError, asked: list[Claim], wrong: list[str]) -> None:
        if wrong or any(p.path == "network.block_quota" for p in found.problems):
            return
        new_cells = {c.cell for c in asked if c.cell} - {c.cell for c in asked if c.name in self.lock.subnets}
        if pages(self.pool) == 1 or not new_cells:
            assert not oracle.packs(asked, self.pool, self.lock), found

    @rule(
        name=groups, zone=st.sampled_from(ZONES[:2]), needed=counts, growth=counts, cell=st.none() | systems
    )
    def put_group(self, name, zone, needed, growth, cell):
        cell = cell if cell in self.claims else None
        self.edit({**self.claims, name: claim(name, needed, needed + growth, zone=zone, cell=cell)})

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def remove(self, data):
        name = data.draw(st.sampled_from(sorted(self.claims)))
        self.edit({n: c for n, c in self.claims.items() if n != name})

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def resize_within_growth(self, data):
        now = self.claims[data.draw(st.sampled_from(sorted(self.claims)))]
        room = oracle.usable(self.given[now.name].num_addresses)
        needed = data.draw(st.integers(0, min(oracle.want(now), room)))
        self.edit({**self.claims, now.name: replace(now, needed=needed)})
        assert self.claims[now.name].needed == needed

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), over=st.integers(1, 200))
    def resize_beyond_the_subnet(self, data, over):
        now = self.claims[data.draw(st.sampled_from(sorted(self.claims)))]
        needed = oracle.usable(self.given[now.name].num_addresses) + over
        self.edit({**self.claims, now.name: replace(now, needed=needed)})
        assert self.claims[now.name] == now

    @precondition(lambda self: any(n in self.GROUPS for n in self.claims))
    @rule(name=systems, needed=counts, data=st.data())
    def add_file_system_with_clients(self, name, needed, data):
        here = [n for n in self.GROUPS if n in self.claims]
        clients = data.draw(st.sets(st.sampled_from(here)))
        joined = {n: replace(self.claims[n], cell=name) for n in clients}
        self.edit({**self.claims, **joined, name: claim(name, needed, cell=name, purpose="storage")})

    @rule()
    def prune(self):
        self.edit(dict(self.claims), prune=True)

    @rule(name=groups, needed=counts)
    def plan_and_think_again(self, name, needed):
        self.edit({**self.claims, name: claim(name, needed)}, keep=False)

    @rule(seed=st.integers(0, 99))
    def lock_again(self, seed):
        lock, given = self.lock, dict(self.given)
        shuffled = list(self.claims.items())
        random.Random(seed).shuffle(shuffled)
        self.edit(dict(shuffled))
        assert (self.lock, self.given) == (lock, given)

    @invariant()
    def the_lock_is_what_was_given(self):
        assert {n: s.cidr for n, s in self.lock.subnets.items()} == self.given
        assert list(self.lock.blocks) == self.blocks
        assert all((self.lock.subnets[n].zone == c.zone) for n, c in self.claims.items())


TestEdits = Edits.TestCase
TestEdits.settings = settings(FIXED, max_examples=150, stateful_step_count=15)


@st.composite
def given_subnets(draw) -> list[GivenSubnet]:
    found = []
    for i in range(draw(st.integers(0, 6))):
        cidr = IPv4Network(f"10.{draw(st.integers(1, 2))}.{i}.0/{draw(st.integers(24, 28))}")
        found.append(
            GivenSubnet(
                id=f"subnet-{i}",
                zone=draw(st.sampled_from(ZONES[:2])),
                cidr=cidr,
                free=draw(st.integers(0, oracle.usable(cidr.num_addresses))),
                purposes=draw(st.sampled_from((("nodes",), *[("nodes", "storage")] * 3))),
            )
        )
    return found


@given(
    subnets=given_subnets(),
    claims=claim_lists(most=4, least=1, largest=60, zones=ZONES[:2], cells=(None, "a", "b")),
    data=st.data(),
)
@settings(FIXED, max_examples=400)
def test_verify_seats_within_what_is_free(subnets, claims, data):
    blocks = nets("10.1.0.0/16", "10.2.0.0/16")
    by_id = {s.id: s for s in subnets}
    try:
        plan, seats = verify(claims, blocks=blocks, subnets=subnets)
    except PlanError as error:
        for problem in error.problems:
            subject = next(c for c in claims if c.path == problem.path)
            needs = f"{subject.name} needs {oracle.want(subject)} free addresses in {subject.zone}"
            assert problem.given == needs
            short = int(problem.allowed.split("(short by ")[1].split(")")[0])
            left = int(problem.allowed.split(" has ")[1].split(" left")[0])
            assert 1 <= short == oracle.want(subject) - left
            assert f"add a {subject.purpose} subnet in {subject.zone}" in problem.fix
        return
    assert plan.blocks == tuple(blocks)
    assert sorted(seats) == sorted(s.claim for s in plan.subnets) == sorted(c.name for c in claims)
    for c in claims:
        seat = by_id[seats[c.name]]
        assert (seat.zone, seat.cidr) == (c.zone, plan.subnet(c.name).cidr)
        assert c.purpose in seat.purposes
        assert (plan.subnet(c.name).needed, plan.subnet(c.name).reserved) == (c.needed, oracle.want(c))
    for s in subnets:
        assert sum(oracle.want(c) for c in claims if seats[c.name] == s.id) <= s.free
    for cell in ("a", "b"):
        homes = {by_id[seats[c.name]].cidr for c in claims if c.cell == cell}
        assert pages(list(homes)) <= 1
    shuffled = [data.draw(st.permutations(x)) for x in (claims, subnets)]
    assert verify(shuffled[0], blocks=blocks, subnets=shuffled[1]) == (plan, seats)


@given(subnets=given_subnets(), claims=claim_lists(most=1, least=1, largest=260, zones=ZONES[:2]))
@settings(FIXED, max_examples=150)
def test_verify_refuses_a_lone_claim_only_by_its_shortfall(subnets, claims):
    [one] = claims
    near = [s.free for s in subnets if s.zone == one.zone and one.purpose in s.purposes]
    if max(near, default=0) >= oracle.want(one) and near:
        _, seats = verify(claims, blocks=nets("10.1.0.0/16"), subnets=subnets)
        chosen = next(s for s in subnets if s.id == seats[one.name])
        assert chosen.free == min(f for f in near if f >= oracle.want(one))
        return
    with pytest.raises(PlanError) as caught:
        verify(claims, blocks=nets("10.1.0.0/16"), subnets=subnets)
    assert f"(short by {oracle.want(one) - max(near, default=0)})" in str(caught.value)
    assert f"the best of {len(near)} {one.purpose} subnets" in str(caught.value)


PLACES = st.sampled_from([
    "10.0.0.0", "10.0.255.0", "10.1.0.0", "10.2.0.0", "10.255.0.0",
    "172.16.0.0", "172.30.255.0", "172.31.0.0", "192.168.0.0", "192.168.255.0",
    "100.64.0.0", "100.127.255.0", "198.18.0.0", "203.0.113.0",
])  # fmt: skip


@given(primary=PLACES, secondary=PLACES | st.just("198.19.0.0"), prefix=st.integers(24, 28))
@settings(FIXED, max_examples=250)
def test_secondary_blocks_follow_the_table_of_aws(primary, secondary, prefix):
    first, second = IPv4Network(f"{primary}/{prefix}"), IPv4Network(f"{secondary}/24")
    assert accepts_secondary(first, second) == oracle.may_join([oracle.span(first)], oracle.span(second))


@pytest.mark.parametrize(
    ("pool", "given", "parts"),
    [
        ([], "no network", ["at least one private network", "/13"]),
        (["10.0.0.0/16"], "10.0.0.0/16", ["anything but 10.0.0.0/16", "no second block", "grow"]),
        (["10.0.64.0/18"], "10.0.64.0/18", ["anything but 10.0.0.0/16"]),
        (["172.31.0.0/16"], "172.31.0.0/16", ["anything but 172.31.0.0/16", "grow"]),
        (["8.8.8.0/24"], "8.8.8.0/24", ["10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"]),
        (["10.0.0.0/7"], "10.0.0.0/7", ["10.0.0.0/8", "private network"]),
        (["0.0.0.0/0"], "0.0.0.0/0", ["private network"]),
        (["198.19.0.0/16"], "198.19.0.0/16", ["private network"]),
        (["169.254.0.0/16"], "169.254.0.0/16", ["private network"]),
        (["10.8.0.0/29"], "10.8.0.0/29", ["a /28 or larger", "no smaller subnet"]),
        (["172.17.0.0/16"], "172.17.0.0/16", ["anything but 172.17.0.0/16", "container bridge"]),
        (["172.17.3.0/24"], "172.17.3.0/24", ["172.17.0.0/16", "SageMaker"]),
        (["10.8.0.0/16", "192.168.0.0/16"], "10.8.0.0/16, 192.168.0.0/16", ["one of the private", "one VPC"]),
        (["10.1.0.0/16", "172.18.0.0/16"], "10.1.0.0/16, 172.18.0.0/16", ["100.64.0.0/10", "does not join"]),
        (["10.8.0.0/15", "10.9.0.0/16"], "10.9.0.0/16", ["do not overlap", "drop one"]),
        (["10.8.0.0/16", "10.8.0.0/16"], "10.8.0.0/16", ["do not overlap"]),
    ],
)  # fmt: skip
def test_a_pool_that_aws_or_sagemaker_would_break_on_is_refused(pool, given, parts):
    [problem] = check_pool(nets(*pool), path="network.pool")
    assert (problem.path, problem.given) == ("network.pool", given)
    assert all(part in f"{problem.allowed} {problem.fix}" for part in parts)
    assert problem in refusal([claim("a", 1)], pool=nets(*pool))


@pytest.mark.parametrize(
    "pool",
    [
        ["10.8.0.0/13"],
        ["10.8.0.0/28"],
        ["10.0.0.0/8"],
        ["10.0.0.0/15"],
        ["172.16.0.0/12"],
        ["192.168.0.0/16"],
        ["100.64.0.0/10"],
        ["10.0.0.0/8", "100.64.0.0/10"],
        ["100.64.0.0/10", "172.16.0.0/12"],
    ],
)
def test_a_good_pool_passes(pool):
    assert check_pool(nets(*pool), path="network.pool") == []
    claims = [claim("a", 11)]
    assert oracle.faults(allocate(claims, pool=nets(*pool)), claims, pool=nets(*pool)) == []


def test_pages_that_must_not_be_given_are_skipped():
    claims = [claim(f"g{i}", 60_000) for i in range(14)]
    plan = allocate(claims, pool=nets("172.16.0.0/12"), block_quota=LARGE)
    assert [str(b) for b in plan.blocks] == [f"172.{n}.0.0/16" for n in (16, *range(18, 31))]
    [problem] = refusal([*claims, claim("g14", 60_000)], pool=nets("172.16.0.0/12"), block_quota=LARGE)
    assert "0 left" in problem.allowed
    plan = allocate(claims[:3], pool=nets("10.0.0.0/8"))
    assert [str(b) for b in plan.blocks] == ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]


@pytest.mark.parametrize("block", ["10.0.4.0/26", "172.31.4.0/26"])
def test_a_locked_block_is_filled_even_where_no_second_one_could_be(block):
    half = next(IPv4Network(block).subnets())
    locked = LockedSubnet(zone=ZONES[0], purpose="nodes", cidr=half)
    lock = AddressLock(blocks=tuple(nets(block)), subnets={"old": locked})
    claims = [claim("old", 9), claim("new", 27)]
    pool = nets("10.0.0.0/8" if block.startswith("10.") else "172.16.0.0/12")
    plan = allocate(claims, pool=pool, lock=lock)
    assert plan.blocks == lock.blocks
    assert oracle.faults(plan, claims, pool=pool, lock=lock) == []


def test_a_pool_that_changed_gives_only_what_may_join_the_primary_block():
    claims, was = [claim("old", 59)], nets("192.168.0.0/26")
    lock = lock_of(allocate(claims, pool=was))
    claims, pool = [*claims, claim("new", 59)], nets("10.8.0.0/16", "100.64.0.0/24")
    plan = allocate(claims, pool=pool, lock=lock)
    assert [str(b) for b in plan.blocks] == ["192.168.0.0/26", "100.64.0.0/26"]
    assert oracle.faults(plan, claims, pool=pool, lock=lock) == []


@pytest.mark.parametrize("pool", [("10.8.0.0/16", "100.64.0.0/10"), ("100.64.0.0/16", "10.8.0.0/16")])
def test_the_shared_range_is_never_primary_beside_a_private_one(pool):
    claims = [claim("small", 30_000), claim("large", 60_000)]
    plan = allocate(claims, pool=nets(*pool))
    assert [str(b)[:3] for b in plan.blocks] == ["10.", "100"]
    assert oracle.faults(plan, claims, pool=nets(*pool)) == []


def test_growth_does_not_spend_the_quota_on_gaps_between_blocks():
    pool, claims, lock = nets("10.8.0.0/13"), [], None
    for step, counts in enumerate(((4000, 59), (59, 123, 251), (507,), (1000,), (2000,))):
        claims += [claim(f"g{step}-{i}", n) for i, n in enumerate(counts)]
        plan = allocate(claims, pool=pool, lock=lock)
        assert oracle.faults(plan, claims, pool=pool, lock=lock) == []
        lock = lock_of(plan)
    assert len(lock.blocks) <= 4
