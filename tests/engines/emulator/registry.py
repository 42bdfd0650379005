"""The types the emulator knows: the place to add one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ministack import app

from . import lambdas, references
from .addresses import Occupancy
from .associations import DataRepositoryAssociation
from .faults import Faults
from .filesystems import FileSystem
from .fsx_api import FsxApi
from .gateways import ElasticIp, FlowLog, GatewayAttachment, NatGateway, Route
from .hooks import Hooks
from .hyperpod import Cluster
from .inventory import Inventory
from .kinds import Kind
from .lambdas import AutoDeleteObjects
from .network import Vpc, VpcCidrBlock
from .processing import ProcessingApi
from .recorded import RECORDED
from .security_groups import Egress, Ingress, SecurityGroup
from .stores import Bucket, LogGroup
from .subnets import Subnet, VpcEndpoint


def install(state: Path, tables: Path, order: int | None) -> None:
    """Put everything into ministack; `order` is the seed of a random creation order."""
    inventory, kinds = Inventory(state / "inventory.json"), dict[str, Kind]()
    occupancy = Occupancy(inventory, kinds)
    kinds |= {kind.type: kind for kind in all_kinds(inventory, occupancy, tables)}
    faults = Faults(state / "faults.json")
    Hooks(kinds, inventory, occupancy, faults).install()
    lambdas.install()
    references.install_outputs()
    if order is not None:
        references.install_order(order)
    app.SERVICE_HANDLERS["fsx"] = FsxApi(inventory).handle
    app.SERVICE_HANDLERS["sagemaker"] = ProcessingApi(inventory, faults).handle


def all_kinds(inventory: Inventory, occupancy: Occupancy, tables: Path) -> Iterator[Kind]:
    """One object for each type with rules of its own."""
    blocks, nodes = VpcCidrBlock(inventory), _Nodes(tables)
    yield from (Vpc(inventory), blocks, Subnet(blocks, occupancy), VpcEndpoint(inventory))
    yield from (GatewayAttachment(inventory), Route(), ElasticIp(inventory), NatGateway(), FlowLog())
    yield from (SecurityGroup(occupancy), Ingress(), Egress())
    yield from (FileSystem(inventory, occupancy), DataRepositoryAssociation(inventory))
    yield Cluster(inventory, occupancy, nodes.addresses, nodes.has_efa)
    yield from (Bucket(), LogGroup(), AutoDeleteObjects(), *RECORDED)


class _Nodes:
    """The product's instance table, which needs nothing but the standard library."""

    def __init__(self, path: Path) -> None:
        package = path.parents[1]
        sys.path.insert(0, str(package.parent))
        self._table: Any = importlib.import_module(f"{package.name}.{path.parent.name}.{path.stem}")
        sys.path.remove(str(package.parent))

    def addresses(self, instance_type: str, orchestrator: str, interface_type: str) -> int:
        """What one node takes; an unknown type is the schema's business, and takes one."""
        row = self._row(instance_type)
        return row.addresses_per_node(orchestrator, interface_type) if row else 1

    def has_efa(self, instance_type: str) -> bool:
        """Whether its nodes run EFA health checks."""
        row = self._row(instance_type)
        return bool(row and row.efa_interfaces)

    def _row(self, instance_type: str) -> Any:
        try:
            return self._table.lookup(instance_type)
        except (KeyError, ValueError):
            return None
