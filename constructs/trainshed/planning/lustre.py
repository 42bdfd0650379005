"""FSx for Lustre as it is sold: capacity steps, servers, addresses, throughput.

Two storage classes grow along different lines: SSD by capacity, Intelligent-Tiering by throughput.
Every figure below names its source ("User Guide": FSx for Lustre's); `lustre_rules` refuses plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Literal

from .associations import AssociationPlan
from .problems import nearest

StorageClass = Literal["ssd", "intelligent-tiering"]
Compression = Literal["lz4", "none"]
CacheMode = Literal["no-cache", "proportional", "user"]

TIERS_MBPS_PER_TIB = (125, 250, 500, 1000)
"""PerUnitStorageThroughput of PERSISTENT_2 SSD. Source: FSx API, CreateFileSystem."""
LOCAL_ZONE_TIERS = (125, 250)
"""User Guide, "Deployment type availability", footnote: there also no EFA, no Intelligent-Tiering."""
SMALLEST_SSD_GIB = 1_200
SSD_STEP_GIB = 2_400
"""1200, 2400 and increments of 2400 GiB. Source: FSx API, StorageCapacity. A server per step:
User Guide, "IP addresses for file systems", Persistent 2 non-EFA."""
EFA_STEP_GIB = {125: 38_400, 250: 19_200, 500: 9_600, 1000: 4_800}
"""By tier; the smallest is one step. Source: User Guide, "Increasing storage capacity". A server per
step: "IP addresses for file systems", Persistent 2 EFA."""
TIERING_STEP_MBPS = 4_000
TIERING_MOST_MBPS = 2_000_000
"""ThroughputCapacity. Source: FSx API. Its text also lists 1000 and 2000, its own shape begins at
4000: refused. A server per 4000 MB/s: "IP addresses for file systems"."""
METADATA_IOPS_PER_SERVER = 12_000
MOST_METADATA_IOPS = 192_000
"""User Guide, "IP addresses for file systems", note; FSx API, MetadataIops."""
_TWELVES = tuple(range(METADATA_IOPS_PER_SERVER, MOST_METADATA_IOPS + 1, METADATA_IOPS_PER_SERVER))
METADATA_IOPS: dict[str, tuple[int, ...]] = {
    "ssd": (1_500, 3_000, 6_000, *_TWELVES),
    "intelligent-tiering": (6_000, *_TWELVES),
}
"""Iops in USER_PROVISIONED mode. SSD: FSx API. Intelligent-Tiering: sources disagree. The User Guide
knows 6000 and 12000, earlier API texts 6000 and multiples of 12000, the current one also 1500 and
3000. The middle reading is taken; 6000 and 12000 are safe by all three. Automatic mode on
Intelligent-Tiering is denied by the User Guide and, lately, granted by the API without figures: it is
refused, for its servers could not be counted."""
AUTOMATIC_METADATA_IOPS = ((12_000, 12_000), (4_800, 6_000), (2_400, 3_000), (0, 1_500))
"""(from GiB, IOPS) on SSD; from 48,000 GiB on, 12,000 for each whole 24,000 GiB. Source: User Guide,
"Lustre metadata performance configuration"."""
AUTOMATIC_GROWS_EVERY_GIB = 24_000
CACHE_GIB_PER_1000_MBPS = (8, 32_768)
"""Intelligent-Tiering read cache, smallest and largest. Source: FSx API, LustreReadCacheConfiguration."""
COMPRESSIONS: tuple[str, ...] = ("lz4", "none")
"""Source: FSx API, DataCompressionType."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCache:
    """The SSD read cache of an Intelligent-Tiering file system.

    `size_gib` (GiB) goes with mode "user" and with no other.
    """

    mode: CacheMode
    size_gib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LustrePlan:
    """One PERSISTENT_2 file system at Lustre 2.15 (the version current AMIs can mount).

    SSD takes `capacity_gib` (GiB) and `throughput_mbps_per_tib` (MB/s for each TiB), Intelligent-
    Tiering `throughput_mbps` (MB/s in all) and `read_cache`. `zone` is a zone id. `metadata_iops` is
    None for automatic (SSD only): either way the file system has the metadata configuration that
    EFA needs. `backup_days` defaults to 0, as in the API; `root_squash` is "uid:gid", None for off,
    and `no_squash_nids` the clients it spares; `maintenance` is `d:HH:MM` in UTC.

    The derived figures hold for a plan that `check_lustre` accepts; they raise `ValueError` while
    the size is missing.
    """

    version: ClassVar[str] = "2.15"
    deployment_type: ClassVar[str] = "PERSISTENT_2"

    name: str
    zone: str
    storage_class: StorageClass = "ssd"
    capacity_gib: int | None = None
    throughput_mbps_per_tib: int | None = None
    throughput_mbps: int | None = None
    read_cache: ReadCache | None = None
    efa: bool = False
    metadata_iops: int | None = None
    compression: Compression = "lz4"
    backup_days: int = 0
    root_squash: str | None = None
    no_squash_nids: tuple[str, ...] = ()
    associations: tuple[AssociationPlan, ...] = ()
    maintenance: str | None = None

    @property
    def object_servers(self) -> int:
        """Servers that hold file data (OSS)."""
        return _servers(self._size, self._step)

    @property
    def metadata_servers(self) -> int:
        """Servers that hold names and attributes (MDS): one per 12,000 metadata IOPS."""
        return self._metadata_servers_at(self._size)

    @property
    def addresses(self) -> int:
        """IPv4 addresses taken in the subnet: one per server. Source: User Guide, "IP addresses"."""
        return self.addresses_at(self._size)

    @property
    def aggregate_throughput_mbps(self) -> int:
        """Baseline throughput of the whole file system in MB/s."""
        if self.storage_class == "intelligent-tiering":
            return self._size
        return self._size * (self.throughput_mbps_per_tib or 0) // 1000

    def addresses_at(self, size: int, /) -> int:
        """Addresses once it has grown to `size`: GiB on SSD, MB/s on Intelligent-Tiering.

        Metadata grows along where automatic mode would: AWS refuses fewer IOPS than that.
        """
        return _servers(size, self._step) + self._metadata_servers_at(size)

    def _metadata_servers_at(self, size: int) -> int:
        automatic = automatic_metadata_iops(size) if self.storage_class == "ssd" else 0
        return max(1, _servers(max(self.metadata_iops or 0, automatic), METADATA_IOPS_PER_SERVER))

    @property
    def _size(self) -> int:
        size = self.capacity_gib if self.storage_class == "ssd" else self.throughput_mbps
        if size is None:
            field = "capacity_gib" if self.storage_class == "ssd" else "throughput_mbps"
            raise ValueError(f"Lustre file system {self.name!r} has no {field} yet")
        return size

    @property
    def _step(self) -> int:
        if self.storage_class == "intelligent-tiering":
            return TIERING_STEP_MBPS
        return capacity_step_gib(efa=self.efa, tier=self.throughput_mbps_per_tib)


def _servers(size: int, step: int) -> int:
    return -(-size // step)


def automatic_metadata_iops(capacity_gib: int) -> int:
    """Metadata IOPS that automatic mode provisions on SSD, and the fewest one may provision."""
    if capacity_gib >= 2 * AUTOMATIC_GROWS_EVERY_GIB:
        grown = capacity_gib // AUTOMATIC_GROWS_EVERY_GIB * METADATA_IOPS_PER_SERVER
        return min(grown, MOST_METADATA_IOPS)
    return next((iops for start, iops in AUTOMATIC_METADATA_IOPS if capacity_gib >= start), 0)


def capacity_step_gib(*, efa: bool, tier: int | None) -> int:
    """GiB by which SSD capacity grows, which is also what one server holds.

    Raises `ValueError` for EFA at a tier that does not exist.
    """
    if not efa:
        return SSD_STEP_GIB
    if tier not in EFA_STEP_GIB:
        raise ValueError(f"EFA has no throughput tier of {tier} MB/s/TiB: {TIERS_MBPS_PER_TIB}")
    return EFA_STEP_GIB[tier]


def capacity_neighbours(capacity_gib: int, *, efa: bool, tier: int | None) -> tuple[int, ...]:
    """The legal SSD capacities at or around a request, in GiB: itself, or one below and one above.

    Below the smallest there is only the one above. Raises as `capacity_step_gib` does.
    """
    step = capacity_step_gib(efa=efa, tier=tier)
    below = capacity_gib // step * step
    smallest = step if efa else SMALLEST_SSD_GIB
    return nearest(capacity_gib, {smallest, max(below, smallest), max(below + step, smallest)})


def gib_from_tib(tib: Decimal | float) -> int | None:
    """FSx's TiB in GiB, as the console writes them: 1.2 is 1200, 38.4 is 38400.

    None for what is not a whole, positive number of GiB in that count. Floats are read as printed,
    so 1.2 is exactly 1.2.
    """
    exact = Decimal(str(tib))
    if not exact.is_finite() or exact <= 0:
        return None
    gib = Fraction(exact) * 1000
    return gib.numerator if gib.denominator == 1 else None


def tib_from_gib(gib: int) -> str:
    """GiB as the console prints them in TiB: 38400 is "38.4"."""
    return format(Decimal(gib).scaleb(-3).normalize(), "f")
