#!/usr/bin/python3
"""Values for node exporter's textfile collector: EFA, XIDs and checks, and on the controller Slurm's numbers.

HyperPod's published names stay untyped, as they follow no rule of Prometheus's. What is off has no file.
"""

from contextlib import suppress

import node
import slurm_numbers

PLACE = node.ROOT / "var/lib/trainshed/metrics"


def efa():
    """Counters of the EFA devices; NVLink on B200 shows InfiniBand devices, too."""
    for device in sorted((node.ROOT / "sys/class/infiniband").glob("*")):
        if (device / "device/driver").resolve().name == "efa":
            yield "node_amazonefa_info", {"device": device.name}, 1
            for path in sorted(device.glob("ports/*/hw_counters/*")):
                labels = {"device": device.name, "port": path.parts[-3]}
                yield f"node_amazonefa_{path.name}", labels, int(path.read_text(encoding="ascii"))


def health():
    """What the health check counts: an alert on an increase clears, which DCGM's last XID does not."""
    state = node.read(node.STATE)
    for key, count in state.get("counts", {}).items():
        xid, action = key.split()
        yield "trainshed_xid_total", {"xid": xid, "action": action}, count
    for name, fault in state.get("checks", {}).items():
        yield "trainshed_check_ok", {"check": name}, int(not fault)
    if state:
        yield "trainshed_xid_action_waiting", {}, int(state["wanted"][0] != "none")
        yield "trainshed_health_check_timestamp_seconds", {}, int(node.STATE.stat().st_mtime)


def text(samples):
    """Prometheus's text format."""
    families = {}
    for name, labels, value in samples:
        inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
        families.setdefault(name, []).append(f"{name}{inside and f'{{{inside}}}'} {value}\n")
    for name, lines in families.items():
        kind = (
            "counter" if name.endswith("_total") else "gauge" if name.startswith("trainshed") else "untyped"
        )
        yield f"# HELP {name} See docs/xids.md.\n# TYPE {name} {kind}\n{''.join(lines)}"


if __name__ == "__main__" and PLACE.is_dir():
    for name, make in {"efa": efa, "health": health, "slurm": slurm_numbers.samples}.items():
        found = ""
        with suppress(OSError, ValueError):
            found = "".join(text(make()))
        (PLACE / f"{name}.prom").unlink(missing_ok=True) if not found else node.write(
            PLACE / f"{name}.prom", found
        )
