"""Pictures of a run: `python -m trainer.plots METRICS.jsonl --out PNG` draws losses and scores over steps."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from trainer.errors import TrainerError
from trainer.tracking import emit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainer.evaluation import Scene

SURE = 0.3  # score from which a found box is drawn
_MODEL, _BASELINE, _TRUE, _FOUND = "tab:blue", "tab:gray", "tab:green", "tab:orange"


def evaluation_picture(scenes: Sequence[Scene], result: Mapping[str, Any], title: str) -> bytes:
    """PNG: scenes from above (ego at the origin, driving up), and bars of the metrics below."""
    columns = max(min(len(scenes), 3), 2)
    rows = -(-len(scenes) // columns)
    figure = Figure(figsize=(4 * columns, 4 * rows + 3.2), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[4] * rows, 3])
    for number, scene in enumerate(scenes):
        _draw(figure.add_subplot(grid[number // columns, number % columns]), scene, legend=number == 0)
    half = columns // 2
    errors = [
        (_MODEL, "model", result["trajectory"]),
        (_BASELINE, "constant velocity", result["constant_velocity"]),
    ]
    _displacements(figure.add_subplot(grid[rows, :half]), errors)
    shares = {"mAP": result["boxes"]["map"]}
    shares |= {f"AP {kind}": value for kind, value in enumerate(result["boxes"]["ap"])}
    shares |= {f"exact match {task}": value for task, value in result["exact_match"].items()}
    known = {name: value for name, value in shares.items() if value is not None}
    axes = figure.add_subplot(grid[rows, half:])
    axes.bar_label(axes.barh(list(known), list(known.values()), color=_MODEL), fmt="%.2f", padding=3)
    axes.set_xlim(0, 1.1)
    axes.invert_yaxis()
    return _png(figure)


def _draw(axes: Axes, scene: Scene, *, legend: bool) -> None:
    for boxes, colour in ((scene.boxes, _TRUE), (scene.found[scene.found[:, 8] >= SURE], _FOUND)):
        for box in boxes.numpy():
            corners = _corners(box)
            axes.plot(-corners[:, 1], corners[:, 0], color=colour, linewidth=1)
    lines = (
        (scene.history, "black", "past", "-"),
        (scene.truth, _TRUE, "true", "-"),
        (scene.constant_velocity, _BASELINE, "constant velocity", "--"),
        (scene.guess, _MODEL, "predicted", "-"),
    )
    for poses, colour, label, style in lines:
        axes.plot(-poses[:, 1], poses[:, 0], style, color=colour, label=label, marker=".", markersize=3)
    ends = np.concatenate([poses[:, :2].numpy() for poses, *_ in lines])
    reach = max(float(np.abs(ends).max()), 10.0) + 5
    axes.set(xlim=(-reach / 2, reach / 2), ylim=(-reach / 4, reach), title=scene.name, xlabel="m", ylabel="m")
    axes.set_aspect("equal")
    if legend:
        axes.legend(fontsize=7)


def _corners(box: np.ndarray) -> np.ndarray:
    """Outline [5, 2] on the ground of x, y, z, l, w, h, yaw."""
    along, across = box[3] / 2, box[4] / 2
    outline = np.array(
        [[along, across], [along, -across], [-along, -across], [-along, across], [along, across]]
    )
    turn = np.array([[np.cos(box[6]), -np.sin(box[6])], [np.sin(box[6]), np.cos(box[6])]])
    return outline @ turn.T + box[:2]


def _displacements(axes: Axes, errors: Sequence[tuple[str, str, Mapping[str, float | None]]]) -> None:
    for offset, (colour, label, found) in enumerate(errors):
        if found["ade"] is not None:
            at = np.arange(2) + 0.4 * offset - 0.2
            bars = axes.bar(at, [found["ade"], found["fde"]], 0.4, color=colour, label=label)
            axes.bar_label(bars, fmt="%.2f")
    axes.set_xticks([0, 1], ["ADE", "FDE"])
    axes.set_ylabel("m")
    axes.legend(fontsize=7)


def run_picture(lines: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """PNG of a run's JSONL entries: losses by task, gradient norm, and ADE of the evaluations, over steps."""
    steps = [entry for entry in lines if entry.get("kind") == "step"]
    scored = [entry for entry in lines if entry.get("kind") == "evaluation" and entry.get("ade") is not None]
    figure = Figure(figsize=(9, 9), layout="constrained")
    figure.suptitle(title)
    losses, norms, errors = figure.subplots(3, 1, sharex=True)
    for name in sorted({key for entry in steps for key in entry if key.startswith("loss")}):
        losses.plot(*series(steps, name), label=name, linewidth=0.8)
    norms.plot(*series(steps, "grad_norm"), label="gradient norm", linewidth=0.8)
    for name, colour in (("ade", _MODEL), ("ade_constant_velocity", _BASELINE)):
        errors.plot(*series(scored, name), label=name, color=colour, marker="o")
    errors.set(xlabel="step", ylabel="m")
    for axes in (losses, norms, errors):
        if axes.has_data():
            axes.legend(fontsize=7)
    return _png(figure)


def series(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values where there is one; a step repeated after a restart counts as last told."""
    told = {entry["step"]: entry[name] for entry in entries if entry.get(name) is not None}
    return sorted(told), [told[step] for step in sorted(told)]


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def read_lines(path: str) -> list[dict[str, Any]]:
    """Entries of a run's JSONL; a last line that a kill cut short is left out."""
    try:
        texts = Path(path).read_text().splitlines()
    except OSError as error:
        fix = "set tracking.jsonl in the recipe"
        raise TrainerError("metrics", f"{path} ({error.strerror})", "a run's JSONL file", fix) from None
    entries = []
    for number, text in enumerate(texts, 1):
        try:
            entries.append(json.loads(text))
        except ValueError:
            if number < len(texts):
                given = f"{path} line {number}, which is no JSON"
                raise TrainerError("metrics", given, "a run's JSONL file", "name that file") from None
    if not any(isinstance(entry, dict) and entry.get("kind") == "step" for entry in entries):
        raise TrainerError("metrics", f"{path} (no step in it)", "a run's JSONL file", "train first")
    return entries


def main(arguments: list[str]) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plots", description=__doc__, allow_abbrev=False)
    parser.add_argument("metrics", help="file that tracking.jsonl names")
    parser.add_argument("--out", required=True, metavar="PNG")
    options = parser.parse_args(arguments)
    try:
        Path(options.out).write_bytes(run_picture(read_lines(options.metrics), options.metrics))
    except TrainerError as error:
        emit("error", text=str(error))
        return 2
    except OSError as error:
        fix = "choose another path"
        emit("error", text=TrainerError("--out", f"{options.out} ({error.strerror})", "a writable file", fix))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
