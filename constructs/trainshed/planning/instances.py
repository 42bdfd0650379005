"""THE instance table: what one HyperPod node has, and how many addresses it takes from its subnet.

All that depends on hardware derives from here: subnets, max pods, gres, EFA requests, caches, cost. AWS
publishes the addresses of ml.p5.48xlarge alone; for every other type they are the same formula applied to it,
and `InstanceType.addresses_are_published` tells the two apart.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Orchestrator = Literal["slurm", "eks"]
InterfaceType = Literal["efa", "efa-only"]
Architecture = Literal["x86_64", "arm64"]
PublishedFigure = Literal["slurm-addresses", "eks-addresses", "max-pods"]

_SAGEMAKER: Final = "SageMaker AI Developer Guide"
SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "EC2-API": "Amazon EC2 API, DescribeInstanceTypes (read from the snapshot that moto ships)",
        "EC2-AC": "Amazon EC2 Instance Types, Specifications for accelerated computing instances",
        "EC2-NITRO": "Amazon EC2 Instance Types, Instances built on the AWS Nitro System",
        "EC2-EFA": "Amazon EC2 User Guide, Elastic Fabric Adapter for AI/ML and HPC workloads",
        "EC2-CARDS": "Amazon EC2 User Guide, Maximize network bandwidth […] with multiple network cards",
        "NEURON": "AWS Neuron documentation, Trainium2 architecture",
        "HP-VPC": f"{_SAGEMAKER}, Prerequisites for using SageMaker HyperPod",
        "HP-EKS": f"{_SAGEMAKER}, Getting started with Amazon EKS support in SageMaker HyperPod",
        "HP-NVME": f"{_SAGEMAKER}, Using the Amazon EBS CSI driver on SageMaker HyperPod EKS clusters",
        "HP-DHC": f"{_SAGEMAKER}, Deep health checks (one page for EKS, one for Slurm)",
        "HP-ULTRA": f"{_SAGEMAKER}, Reserve Flexible Training Plans, UltraServers in SageMaker AI",
        "FSX-EFA": "FSx for Lustre User Guide, Working with EFA-enabled file systems",
    }
)
"""Where the figures come from: key in `InstanceType.sources` or in a docstring → the AWS page."""

_HYPERPOD_MAX_PODS: Final = 49  # HP-EKS lists no type above it, not even g7e, whose interface holds 64
_RDMA_READ_BEFORE_NITRO_4: Final = frozenset({"p4d", "p4de"})  # EC2-EFA
_GDS_FAMILIES: Final = frozenset({"p5", "p5e", "p5en", "p6-b200", "p6-b300"})  # FSX-EFA
_ULTRASERVER_ACCELERATORS: Final[Mapping[str, int]] = MappingProxyType({"p6e-gb200": 72})  # HP-ULTRA
_NVME_MOUNTS: Final[Mapping[Orchestrator, str]] = MappingProxyType(
    # HP-NVME for EKS. No AWS page states the Slurm mount: it is what the DLAMI's dlami-nvme.service does.
    {"slurm": "/opt/dlami/nvme", "eks": "/opt/sagemaker"}
)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One `ml.` instance type as HyperPod runs it.

    Units: `memory_gib` and `accelerator_memory_gib` (of each accelerator) are whole GiB, rounded down;
    `nvme_gb_each` is decimal GB; `bandwidth_gbps` is what all network cards sustain together: where AWS says
    "up to", the baseline, never the burst. `nitro` is the version of the Nitro System (EC2-NITRO).
    `published` names the figures that AWS states for HyperPod itself, `sources` the keys of `SOURCES`.
    """

    name: str
    vcpus: int
    memory_gib: int
    architecture: Architecture
    accelerator: str | None
    accelerators: int
    accelerator_memory_gib: int
    network_cards: int
    efa_interfaces: int
    ipv4_per_interface: int
    bandwidth_gbps: float
    nvme_disks: int
    nvme_gb_each: int
    nitro: int
    published: frozenset[PublishedFigure]
    sources: tuple[str, ...]

    @property
    def family(self) -> str:
        """`p5` of `ml.p5.48xlarge`."""
        return self.name.split(".")[1]

    @property
    def is_accelerated(self) -> bool:
        """Has GPUs or Trainium chips."""
        return self.accelerators > 0

    @property
    def is_gpu(self) -> bool:
        """Has NVIDIA GPUs."""
        return self.is_accelerated and not self.is_trainium

    @property
    def is_trainium(self) -> bool:
        """Has Trainium chips."""
        return self.accelerator is not None and self.accelerator.startswith("Trainium")

    @property
    def max_pods(self) -> int:
        """Pods on one EKS node: one interface, whose first address is the node's (HP-EKS).

        HP-EKS prints this figure for the types with "max-pods" in `published`. For the rest it is derived,
        under the ceiling of 49 that HP-EKS keeps even where EC2's interface holds 64 addresses.
        """
        return min(self.ipv4_per_interface - 1, _HYPERPOD_MAX_PODS)

    def addresses_per_node(self, orchestrator: Orchestrator, interface_type: InterfaceType) -> int:
        """IPv4 addresses one node takes from its subnet.

        HP-VPC, for P5: on Slurm "32 IP addresses (one per network card)", on EKS "81 IP addresses (50 from
        the primary card plus one from each of the remaining 31 cards)". The other types follow the same
        formula; it is an upper bound where a card takes nothing but EFA-only interfaces (p6e-gb200). Those
        take no address (EC2-EFA), which leaves the primary interface's; that HyperPod then assigns no more
        is inferred, not published.
        """
        if interface_type == "efa-only" and self.efa_interfaces == 0:
            msg = (
                f"{self.name} has no EFA interface, but interface type 'efa-only' was asked for. "
                f"Allowed for this type: 'efa' (it then has plain interfaces). "
                f"Use 'efa', or choose an instance type with EFA."
            )
            raise ValueError(msg)
        cards = 1 if interface_type == "efa-only" else self.network_cards
        primary = 1 if orchestrator == "slurm" else self.ipv4_per_interface
        return primary + cards - 1

    def addresses_are_published(self, orchestrator: Orchestrator, interface_type: InterfaceType) -> bool:
        """Whether AWS states `addresses_per_node` itself (HP-VPC), rather than this module deriving it."""
        figure: PublishedFigure = "slurm-addresses" if orchestrator == "slurm" else "eks-addresses"
        return interface_type == "efa" and figure in self.published

    @property
    def rdma_read(self) -> bool:
        """EFA with RDMA read: every Nitro v4 or later type with EFA, and p4d and p4de before it (EC2-EFA)."""
        return self.efa_interfaces > 0 and (self.nitro >= 4 or self.family in _RDMA_READ_BEFORE_NITRO_4)

    @property
    def efa_lustre_client(self) -> bool:
        """Can mount FSx for Lustre over EFA.

        Derived, for lack of a list of types, from FSX-EFA: "Nitro v4 (or higher) EC2 instances that support
        EFA, excluding the trn2 instance family". True of p6e-gb200 too, but its only location, the Dallas
        Local Zone, has no EFA-enabled file systems.
        """
        return self.efa_interfaces > 0 and self.nitro >= 4 and self.family != "trn2"

    @property
    def gds(self) -> bool:
        """GPUDirect Storage from an EFA-enabled file system: P5, P5e, P5en, P6-B200, P6-B300 (FSX-EFA)."""
        return self.family in _GDS_FAMILIES

    @property
    def ultraserver_accelerators(self) -> int | None:
        """Accelerators in one NVLink domain across nodes, or None where a node stands alone (HP-ULTRA)."""
        return _ULTRASERVER_ACCELERATORS.get(self.family)

    def runs_deep_health_checks(self, orchestrator: Orchestrator) -> bool:
        """Whether HyperPod's deep health checks cover this type (HP-DHC).

        AWS's lists speak of classes: GPU and Trainium on EKS, GPU alone on Slurm. By name they give only the
        families g5, p4 and p5 ("include"), so for other GPUs this is the class's word, not the type's.
        """
        return self.is_gpu or (orchestrator == "eks" and self.is_trainium)

    def nvme_mount(self, orchestrator: Orchestrator) -> str | None:
        """Where the AMI mounts the local NVMe disks as one volume; None without disks."""
        return _NVME_MOUNTS[orchestrator] if self.nvme_disks else None


# HP-EKS's table of max pods leaves out these families, and one size of p5.
# fmt: off
_MAX_PODS_UNLISTED: Final = frozenset((
    "c6i", "c8a", "g7", "i3en", "m6i", "m7i", "m8a", "p5.4xlarge", "p5en", "p6-b200", "p6e-gb200",
    "r6i", "r7i", "trn2",
))
# fmt: on


def _published(family: str, size: str) -> frozenset[PublishedFigure]:
    if (family, size) == ("p5", "48xlarge"):
        return frozenset(("slurm-addresses", "eks-addresses", "max-pods"))
    listed = _MAX_PODS_UNLISTED.isdisjoint((family, f"{family}.{size}"))
    return frozenset(("max-pods",)) if listed else frozenset()


_Row = tuple[str, int, int, int, int, int, int, float, int, int]


def _family(
    name: str,
    accelerator: str | None,
    accelerator_gib: int,
    *rows: _Row,
    nitro: int,
    architecture: Architecture = "x86_64",
    sources: tuple[str, ...],
) -> Iterator[InstanceType]:
    for size, vcpus, gib, accelerators, cards, efa, ipv4, gbps, disks, gb in rows:
        yield InstanceType(
            name=f"ml.{name}.{size}",
            vcpus=vcpus,
            memory_gib=gib,
            architecture=architecture,
            accelerator=accelerator,
            accelerators=accelerators,
            accelerator_memory_gib=accelerator_gib,
            network_cards=cards,
            efa_interfaces=efa,
            ipv4_per_interface=ipv4,
            bandwidth_gbps=gbps,
            nvme_disks=disks,
            nvme_gb_each=gb,
            nitro=nitro,
            published=_published(name, size),
            sources=sources,
        )


_API: Final = ("EC2-API",)
_API_AC: Final = ("EC2-API", "EC2-AC")


# fmt: off
def _table() -> Iterator[InstanceType]:
    #             size    vCPU   GiB chips cards EFA IPv4   Gbps  NVMe GB
    yield from _family("g4dn", "T4", 16,
        (   "xlarge",        4,   16,  1,   1,    0,  10,     5,   1,  125),
        (  "2xlarge",        8,   32,  1,   1,    0,  10,    10,   1,  225),
        (  "4xlarge",       16,   64,  1,   1,    0,  10,    20,   1,  225),
        (  "8xlarge",       32,  128,  1,   1,    1,  15,    50,   1,  900),
        ( "12xlarge",       48,  192,  4,   1,    1,  30,    50,   1,  900),
        ( "16xlarge",       64,  256,  1,   1,    1,  15,    50,   1,  900), nitro=3, sources=_API_AC)
    yield from _family("g5", "A10G", 22,
        (   "xlarge",        4,   16,  1,   1,    0,  15,   2.5,   1,  250),
        (  "2xlarge",        8,   32,  1,   1,    0,  15,     5,   1,  450),
        (  "4xlarge",       16,   64,  1,   1,    0,  30,    10,   1,  600),
        (  "8xlarge",       32,  128,  1,   1,    1,  30,    25,   1,  900),
        ( "12xlarge",       48,  192,  4,   1,    1,  50,    40,   1, 3800),
        ( "16xlarge",       64,  256,  1,   1,    1,  30,    25,   1, 1900),
        ( "24xlarge",       96,  384,  4,   1,    1,  50,    50,   1, 3800),
        ( "48xlarge",      192,  768,  8,   1,    1,  50,   100,   2, 3800), nitro=3, sources=_API_AC)
    yield from _family("g6", "L4", 22,
        (   "xlarge",        4,   16,  1,   1,    0,  15,   2.5,   1,  250),
        (  "2xlarge",        8,   32,  1,   1,    0,  15,     5,   1,  450),
        (  "4xlarge",       16,   64,  1,   1,    0,  30,    10,   1,  600),
        (  "8xlarge",       32,  128,  1,   1,    1,  30,    25,   2,  450),
        ( "12xlarge",       48,  192,  4,   1,    1,  30,    40,   4,  940),
        ( "16xlarge",       64,  256,  1,   1,    1,  50,    25,   2,  940),
        ( "24xlarge",       96,  384,  4,   1,    1,  50,    50,   4,  940),
        ( "48xlarge",      192,  768,  8,   1,    1,  50,   100,   8,  940), nitro=4, sources=_API_AC)
    yield from _family("gr6", "L4", 22,
        (  "4xlarge",       16,  128,  1,   1,    0,  30,    10,   1,  600),
        (  "8xlarge",       32,  256,  1,   1,    1,  30,    25,   2,  450), nitro=4, sources=_API_AC)
    yield from _family("g6e", "L40S", 44,
        (   "xlarge",        4,   32,  1,   1,    0,  15,   2.5,   1,  250),
        (  "2xlarge",        8,   64,  1,   1,    0,  15,     5,   1,  450),
        (  "4xlarge",       16,  128,  1,   1,    0,  30,    20,   1,  600),
        (  "8xlarge",       32,  256,  1,   1,    1,  30,    25,   2,  450),
        ( "12xlarge",       48,  384,  4,   1,    1,  30,   100,   2, 1900),
        ( "16xlarge",       64,  512,  1,   1,    1,  50,    35,   2,  950),
        ( "24xlarge",       96,  768,  4,   2,    2,  50,   200,   2, 1900),
        ( "48xlarge",      192, 1536,  8,   4,    4,  50,   400,   4, 1900), nitro=4, sources=_API_AC)
    yield from _family("g7", "RTX PRO 4500", 32,
        (  "2xlarge",        8,   32,  1,   1,    0,  64,    40,   1,  440),
        (  "4xlarge",       16,   64,  1,   1,    0,  64,    80,   1,  875),
        (  "8xlarge",       32,  128,  1,   1,    1,  64,   100,   1,  930),
        ( "12xlarge",       48,  192,  2,   1,    1,  64,   175,   1, 1900),
        ( "24xlarge",       96,  384,  4,   1,    1,  64,   350,   1, 3800),
        ( "48xlarge",      192,  768,  8,   2,    2,  64,   700,   2, 3800), nitro=6, sources=_API_AC)
    # HP-EKS's 49 pods would mean 50 addresses on the primary interface, EC2-AC says 64. The VPC CNI fills an
    # interface to EC2's figure, so addresses are planned with 64 and pods with 49: both err to the safe side.
    yield from _family("g7e", "RTX PRO Server 6000", 96,
        (  "2xlarge",        8,   64,  1,   1,    0,  64,    50,   1, 1900),
        (  "4xlarge",       16,  128,  1,   1,    0,  64,    50,   1, 1900),
        (  "8xlarge",       32,  256,  1,   1,    1,  64,   100,   1, 1900),
        ( "12xlarge",       48,  512,  2,   1,    1,  64,   400,   1, 3800),
        ( "24xlarge",       96, 1024,  4,   2,    2,  64,   800,   2, 3800),
        ( "48xlarge",      192, 2048,  8,   4,    4,  64,  1600,   4, 3800), nitro=6, sources=_API_AC)
    yield from _family("p4d", "A100", 40,
        ( "24xlarge",       96, 1152,  8,   4,    4,  50,   400,   8, 1000), nitro=3, sources=_API_AC)
    yield from _family("p4de", "A100", 80,
        ( "24xlarge",       96, 1152,  8,   4,    4,  50,   400,   8, 1000), nitro=3, sources=_API_AC)
    yield from _family("p5", "H100", 80,
        (  "4xlarge",       16,  256,  1,   1,    1,  30,   100,   1, 3800),
        ( "48xlarge",      192, 2048,  8,  32,   32,  50,  3200,   8, 3800),
        nitro=4, sources=("HP-VPC", *_API_AC))
    yield from _family("p5e", "H200", 141,
        ( "48xlarge",      192, 2048,  8,  32,   32,  50,  3200,   8, 3800), nitro=4, sources=_API_AC)
    yield from _family("p5en", "H200", 141,
        ( "48xlarge",      192, 2048,  8,  16,   16,  50,  3200,   8, 3800), nitro=5, sources=_API_AC)
    yield from _family("p6-b200", "B200", 179,
        ( "48xlarge",      192, 2048,  8,   8,    8,  50,  3200,   8, 3800), nitro=6, sources=_API_AC)
    # Card 0 has no EFA (EC2-CARDS): 17 cards, 16 EFA interfaces.
    yield from _family("p6-b300", "B300", 268,
        ( "48xlarge",      192, 4096,  8,  17,   16,  50,  6400,   8, 3800), nitro=6,
        sources=(*_API_AC, "EC2-CARDS"))
    # EC2-CARDS offers 4 EFA interfaces of 400 Gbps, as in its example, or 8 of 200; the HyperPod CLI says 0.
    # Which of them HyperPod attaches is not published; 4 is what a pod may request in either of EC2's cases.
    # The cards carry 3200 Gbps (EC2-AC), but the four GPUs drive 1600 of EFA between them (EC2-CARDS).
    yield from _family("p6e-gb200", "B200", 185,
        ( "36xlarge",      144,  960,  4,  17,    4,  50,  3200,   3, 7500), nitro=5, architecture="arm64",
        sources=("EC2-AC", "EC2-CARDS"))
    yield from _family("trn1", "Trainium", 32,
        ( "32xlarge",      128,  512, 16,   8,    8,  50,   800,   4, 1900), nitro=4, sources=_API_AC)
    yield from _family("trn1n", "Trainium", 32,
        ( "32xlarge",      128,  512, 16,  16,   16,  50,  1600,   4, 1900), nitro=4, sources=_API_AC)
    # EC2-API and EC2-AC print 512 GiB for each chip; NEURON says 96 GiB, which is the chip's HBM.
    yield from _family("trn2", "Trainium2", 96,
        (  "3xlarge",       12,  128,  1,   1,    1,  15,   200,   1,  470),
        ( "48xlarge",      192, 2048, 16,  16,   16,  50,  3200,   4, 1900), nitro=5,
        sources=(*_API_AC, "NEURON"))
    yield from _family("c5n", None, 0,
        (    "large",        2,    5,  0,   1,    0,  10,     3,   0,    0),
        (  "2xlarge",        8,   21,  0,   1,    0,  15,    10,   0,    0),
        (  "4xlarge",       16,   42,  0,   1,    0,  30,    15,   0,    0),
        (  "9xlarge",       36,   96,  0,   1,    1,  30,    50,   0,    0),
        ( "18xlarge",       72,  192,  0,   1,    1,  50,   100,   0,    0), nitro=3, sources=_API)
    yield from _family("t3", None, 0,
        (   "medium",        2,    4,  0,   1,    0,   6, 0.256,   0,    0),
        (    "large",        2,    8,  0,   1,    0,  12, 0.512,   0,    0),
        (   "xlarge",        4,   16,  0,   1,    0,  15, 1.024,   0,    0),
        (  "2xlarge",        8,   32,  0,   1,    0,  15, 2.048,   0,    0), nitro=2, sources=_API)
    yield from _family("i3en", None, 0,
        (    "large",        2,   16,  0,   1,    0,  10,   2.1,   1, 1250),
        (   "xlarge",        4,   32,  0,   1,    0,  15,   4.2,   1, 2500),
        (  "2xlarge",        8,   64,  0,   1,    0,  15,   8.4,   2, 2500),
        (  "3xlarge",       12,   96,  0,   1,    0,  15,  12.5,   1, 7500),
        (  "6xlarge",       24,  192,  0,   1,    0,  30,    25,   2, 7500),
        ( "12xlarge",       48,  384,  0,   1,    1,  30,    50,   4, 7500),
        ( "24xlarge",       96,  768,  0,   1,    1,  50,   100,   8, 7500), nitro=3, sources=_API)
    yield from _family("r5d", None, 0,
        ( "16xlarge",       64,  512,  0,   1,    0,  50,    20,   4,  600), nitro=2, sources=_API)
    yield from _family("c8a", None, 0,
        ( "16xlarge",       64,  128,  0,   1,    0,  64,    30,   0,    0), nitro=6, sources=_API)
    yield from _family("m8a", None, 0,
        ( "16xlarge",       64,  256,  0,   1,    0,  64,    30,   0,    0), nitro=6, sources=_API)
# fmt: on


# The remaining CPU families share one ladder of vCPUs and IPv4 addresses per size, and have 2 (c), 4 (m) or
# 8 (r) GiB for each vCPU; they differ in bandwidth and in the sizes with EFA (all EC2-API).
_GIB_PER_VCPU: Final = {"c": 2, "m": 4, "r": 8}
# fmt: off
_LADDER: Final[Mapping[str, tuple[int, int]]] = {
    "medium":   (1,   4), "large":    (2,  10), "xlarge":   (4,   15), "2xlarge":  (8,  15),
    "4xlarge":  (16, 30), "8xlarge":  (32, 30), "9xlarge":  (36,  30), "12xlarge": (48, 30),
    "16xlarge": (64, 50), "18xlarge": (72, 50), "24xlarge": (96,  50), "32xlarge": (128, 50),
    "48xlarge": (192, 50),
}
_GBPS_5: Final  = {"large": 0.75,  "xlarge": 1.25,  "2xlarge": 2.5,   "4xlarge": 5.0}
_GBPS_6: Final  = {"large": 0.781, "xlarge": 1.562, "2xlarge": 3.125, "4xlarge": 6.25,
                   "8xlarge": 12.5, "12xlarge": 18.75, "16xlarge": 25.0, "24xlarge": 37.5}
_GBPS_7G: Final = {"medium": 0.52, "large": 0.937, "xlarge": 1.876, "2xlarge": 3.75, "4xlarge": 7.5,
                   "8xlarge": 15.0, "12xlarge": 22.5, "16xlarge": 30.0}

_CPU_FAMILIES: Final[tuple[tuple[str, Architecture, int, str, dict[str, float]], ...]] = (
    # families architecture nitro  EFA sizes  Gbps by size
    ("c5", "x86_64", 2, "", _GBPS_5 | {"9xlarge": 12, "12xlarge": 12, "18xlarge": 25, "24xlarge": 25}),
    ("m5", "x86_64", 2, "", _GBPS_5 | {"8xlarge": 10, "12xlarge": 12, "16xlarge": 20, "24xlarge": 25}),
    ("c6i m6i r6i", "x86_64", 4, "32xlarge", _GBPS_6 | {"32xlarge": 50}),
    ("c6a m6a", "x86_64", 4, "48xlarge", _GBPS_6 | {"32xlarge": 50, "48xlarge": 50}),
    ("m7i r7i", "x86_64", 4, "48xlarge", _GBPS_6 | {"48xlarge": 50}),
    ("c6g m6g", "arm64", 2, "", _GBPS_5 | {"medium": 0.5, "8xlarge": 12, "12xlarge": 20, "16xlarge": 25}),
    ("c7g m7g", "arm64", 4, "16xlarge", _GBPS_7G),
    ("c8g m8g", "arm64", 5, "24xlarge 48xlarge",
     _GBPS_7G | {"xlarge": 1.875, "24xlarge": 40, "48xlarge": 50}),
)
# fmt: on


def _ladder_table() -> Iterator[InstanceType]:
    for families, architecture, nitro, efa_sizes, gbps_by_size in _CPU_FAMILIES:
        for family in families.split():
            for size, gbps in gbps_by_size.items():
                vcpus, ipv4 = _LADDER[size]
                gib = vcpus * _GIB_PER_VCPU[family[0]]
                row = (size, vcpus, gib, 0, 1, int(size in efa_sizes.split()), ipv4, gbps, 0, 0)
                yield from _family(family, None, 0, row, nitro=nitro, architecture=architecture, sources=_API)


INSTANCE_TYPES: Final[Mapping[str, InstanceType]] = MappingProxyType(
    {each.name: each for each in (*_table(), *_ladder_table())}
)
"""Every instance type HyperPod's API accepts (its enum `ClusterInstanceType`), by `ml.` name."""

_PRICED_ONLY: Final = "it is in AWS's price list for clusters, but the HyperPod API does not accept it"
EXCLUDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ml.p6e-gb200.72xlarge": "it is an UltraServer, whose nodes are ml.p6e-gb200.36xlarge",
        "ml.trn2u.48xlarge": "the HyperPod API does not accept Trn2 UltraServers",
        "ml.trn1.2xlarge": _PRICED_ONLY,
        **{f"ml.inf2.{size}": _PRICED_ONLY for size in ("xlarge", "8xlarge", "24xlarge", "48xlarge")},
    }
)
"""Names refused with their reason: near misses, and members of `ClusterInstanceType` left out (now none)."""


class UnknownInstanceType(ValueError):  # noqa: N818
    """A name that `INSTANCE_TYPES` does not hold; the message says why, or what was probably meant."""


def lookup(name: str) -> InstanceType:
    """The row of `name` (`ml.p5.48xlarge`); `UnknownInstanceType` with a way out where there is none."""
    if name in INSTANCE_TYPES:
        return INSTANCE_TYPES[name]
    if name in EXCLUDED:
        msg = f"Instance type {name!r} cannot be used: {EXCLUDED[name]}."
        raise UnknownInstanceType(msg)
    near = difflib.get_close_matches(name, INSTANCE_TYPES, n=3, cutoff=0.7)
    hint = f"Did you mean {' or '.join(near)}?" if near else "A valid name looks like ml.p5.48xlarge."
    msg = f"Instance type {name!r} is not one of the {len(INSTANCE_TYPES)} that HyperPod accepts. {hint}"
    raise UnknownInstanceType(msg)
