"""What jobs are told about a node's hardware: Slurm's generic resources, NCCL's and libfabric's settings."""

from __future__ import annotations

from .instances import InstanceType

NOT_BETWEEN_NODES = "^lo,docker,veth"  # NCCL, environment variables: a list of prefixes to leave out


def gres(kind: InstanceType) -> str | None:
    """Slurm's generic resource of a whole node, such as `gpu:8`; None without accelerators."""
    if not kind.is_accelerated:
        return None
    return f"{'gpu' if kind.is_gpu else 'neuron'}:{kind.accelerators}"


def job_environment(kind: InstanceType) -> dict[str, str]:
    """Environment variables of a distributed job on this type.

    Only what the defaults of libfabric and aws-ofi-nccl do not find by themselves. Sources: aws-ofi-nccl,
    doc/efa-env-var.md (huge pages run out when loader workers fork); libfabric, fi_efa(7).
    """
    found = {"NCCL_SOCKET_IFNAME": NOT_BETWEEN_NODES} if kind.is_gpu else {}
    if kind.efa_interfaces:
        found |= {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
        if kind.rdma_read and kind.family in ("p4d", "p4de"):
            # Later families turn it on by themselves.
            found["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return found
