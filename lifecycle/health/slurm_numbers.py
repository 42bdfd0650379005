"""Slurm's numbers on the controller, under HyperPod's published names."""

import re
from collections import Counter

import node

FIELDS = (
    "NodeHost:256,PartitionName:128,StateLong:64,CPUsState:64,Memory:32,AllocMem:32,Gres:512,GresUsed:512"
)


def samples():
    """(name, labels, value) of each; raises ValueError when Slurm does not answer."""
    if node.read(node.FACTS).get("role") != "controller":
        return
    states, members, amounts = {}, Counter(), Counter()
    for row in _rows("sinfo", "-haN", "-O", FIELDS):
        name, partition, state, cpus, memory, taken, *gres = row.split()
        states[name] = re.match("[a-z]*", state)[0]
        members[partition] += 1
        used, idle = cpus.split("/")[:2]
        gpus, busy = (sum(map(int, re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", text))) for text in gres)
        for kind, alloc, free in (
            ("cpus", used, idle),
            ("memory", taken, int(memory) - int(taken)),
            ("gpus", busy, gpus - busy),
        ):
            amounts[f"alloc_{kind}", partition] += int(alloc)
            amounts[f"free_{kind}", partition] += int(free)
    jobs = [row.split("|") for row in _rows("squeue", "-har", "-t", "all", "-o", "%T|%P")]
    yield "slurm_node_count", {}, len(states)
    yield "slurm_job_count", {}, len(jobs)
    for name, label, counts in (
        ("slurm_node_state_count", "state", Counter(states.values())),
        ("slurm_job_state_count", "state", Counter(state.lower() for state, _ in jobs)),
        ("slurm_partition_node_count", "partition", members),
        ("slurm_partition_job_count", "partition", Counter(p for _, named in jobs for p in named.split(","))),
    ):
        for key, count in counts.items():
            yield name, {label: key}, count
    for (name, partition), amount in amounts.items():
        yield f"slurm_partition_{name}", {"partition": partition}, amount


def _rows(*command):
    code, output = node.run(10, *command)
    if code != 0:
        raise ValueError(f"{command[0]} does not answer")
    return output.splitlines()
