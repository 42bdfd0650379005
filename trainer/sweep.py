"""A recipe over a grid of values: every point is checked before anything starts, and is a recipe of its own.

`python -m trainer.sweep RECIPE --grid optimizer.lr=1e-4,3e-4 --grid seed=0,1` writes the recipes; `--run
'python -m trainer.launch … -m trainer.train {recipe}'` runs them in turn, `--submit 'sbatch … {recipe}'`
prints the commands. The same command goes on with a sweep. `--report trajectory.ade` ranks the runs.
"""

import argparse
import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from trainer.config import ConfigError, Recipe, check_world, load_recipe
from trainer.errors import TrainerError
from trainer.folders import open_folder
from trainer.resilience import Exit
from trainer.tracking import emit
from trainer.watch import Claims


def points(grids: list[str], file: Path | None) -> list[dict[str, Any]]:
    """Every combination of `path=value,value`, or a file's list of mappings. Raises TrainerError."""
    if file is not None:
        try:
            listed = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError) as failure:
            listed = " ".join(str(failure).split())
        if not (isinstance(listed, list) and listed and all(isinstance(point, dict) for point in listed)):
            given = f"{file} ({str(listed)[:80]})"
            raise TrainerError("--points", given, "a YAML list", "- {optimizer.lr: 1e-4, seed: 0}")
        return listed
    axes: dict[str, list[Any]] = {}
    for grid in grids:
        path, _, text = grid.partition("=")
        try:
            values = yaml.safe_load(f"[{text}]")
        except yaml.YAMLError:
            values = []
        if not path or not values or path in axes:
            raise TrainerError("--grid", grid, "path=value,value, each path once", "--grid seed=0,1")
        axes[path] = values
    if not axes:
        raise TrainerError("--grid", "nothing", "a grid or --points", "--grid optimizer.lr=1e-4,3e-4")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def expand(path: Path, chosen: list[dict[str, Any]], ranks: int | None = None) -> list[Recipe]:
    """A recipe for each point, with a name and folders of its own. Raises ConfigError with every fault.

    `ranks`: processes of one run, if not those of the recipe's hardware.
    """
    base = load_recipe(path)
    ranks = ranks or base.hardware.nodes * base.hardware.accelerators
    made: dict[str, Recipe] = {}
    faults = []
    for point in chosen:
        settings = {at: value if isinstance(value, str) else json.dumps(value) for at, value in point.items()}
        told = " ".join(f"{at}={value}" for at, value in settings.items())
        parts = [at.rpartition(".")[2] + value for at, value in settings.items()]
        name = re.sub(r"[^a-z0-9._-]+", "-", "-".join([base.name, *parts]).lower())
        settings = {"name": name} | _places(base, name) | settings
        try:
            recipe = load_recipe(path, [f"{at}={value}" for at, value in settings.items()])
            if ranks:
                check_world(recipe, ranks)
        except ConfigError as error:
            faults += [f"{told}: {fault}" for fault in error.faults]
            continue
        taken = {other.name for other in made.values()} | made.keys()
        if recipe.name in taken or recipe.checkpoint.folder in taken:
            faults.append(f"{told}: given a point or a folder twice; allowed once; fix: remove one")
        made[recipe.checkpoint.folder] = recipe
    if faults:
        raise ConfigError(faults)
    return list(made.values())


def _places(base: Recipe, name: str) -> dict[str, str]:
    """Where a run writes: the recipe's own places with `name` for the recipe's, or before the last part."""
    given = {
        "checkpoint.folder": base.checkpoint.folder,
        "tracking.jsonl": base.tracking.jsonl,
        "resilience.trace_folder": base.resilience.trace_folder,
    }
    made = {}
    for at, place in given.items():
        if place:
            parts = place.rstrip("/").split("/")
            renamed = [name if part == base.name else part for part in parts]
            made[at] = "/".join(renamed if renamed != parts else [*parts[:-1], name, parts[-1]])
    return made


def write(recipes: list[Recipe], out: Path) -> dict[str, Path]:
    """`OUT/NAME.yaml` by name. One that is there with other content stops all before any is written."""
    paths = {recipe.name: out / f"{recipe.name}.yaml" for recipe in recipes}
    texts = {r.name: yaml.safe_dump(r.model_dump(mode="json"), sort_keys=False) for r in recipes}
    for name, path in paths.items():
        if path.exists() and path.read_text() != texts[name]:
            raise TrainerError("--out", f"{path} with other content", "a new place", "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        path.write_text(texts[name])
    return paths


def figure(recipe: Recipe, metric: str) -> tuple[float, int] | None:
    """(value, step) of `a.b` in the newest result of `trainer.evaluate --watch`, else in the last record of
    metrics.jsonl that has it.
    """
    claims, records = Claims(open_folder(recipe.checkpoint.folder), "", 0), []
    if done := claims.done():
        records.append(claims.result(max(done)))
    jsonl = Path(recipe.tracking.jsonl or "")
    if jsonl.is_file():  # a line that is being written does not end yet
        lines = reversed(jsonl.read_text().splitlines(keepends=True))
        records += [json.loads(line) for line in lines if line.endswith("\n")]
    for record in records:
        value: Any = record
        for part in metric.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            return float(value), record["step"]
    return None


def report(out: Path, metric: str, *, highest: bool = False) -> list[str]:
    """Lines of a table, best first (the lowest, unless told); runs without the figure last."""
    found = {path.stem: figure(load_recipe(path), metric) for path in sorted(out.glob("*.yaml"))}
    if not found:
        raise TrainerError("--out", out, "a folder of recipes", "write them first, with --grid or --points")
    sign = -1 if highest else 1
    ranked = sorted(found.items(), key=lambda run: (1, 0.0) if run[1] is None else (0, sign * run[1][0]))
    rows = [(name, *(("-", "-") if row is None else (f"{row[0]:.6g}", str(row[1])))) for name, row in ranked]
    rows.insert(0, ("run", metric, "step"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]


def main(arguments: list[str]) -> int:
    """The exit code: 1 when a run failed."""
    parser = argparse.ArgumentParser(prog="python -m trainer.sweep", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("recipe", type=Path, help="YAML file")
    add("--grid", action="append", default=[], metavar="PATH=VALUE,VALUE", help="combined with the others")
    add("--points", type=Path, metavar="FILE", help="YAML list of mappings, instead of a grid")
    add("--ranks", type=int, metavar="N", help="processes of a run (default: of the recipe's hardware)")
    add("--out", type=Path, metavar="DIR", help="of the recipes (default: sweeps/RECIPE)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", metavar="COMMAND", help="run it for each {recipe}, one after the other")
    what.add_argument("--submit", metavar="COMMAND", help="print it for each {recipe}")
    what.add_argument("--report", metavar="METRIC", help="rank the runs by a figure, such as trajectory.ade")
    add("--highest", action="store_true", help="report: the highest is the best")
    options = parser.parse_args(arguments)
    out = options.out or Path("sweeps") / options.recipe.stem
    try:
        if options.report:
            lines = report(out, options.report, highest=options.highest)
            sys.stdout.write("\n".join(lines) + "\n")
            return Exit.DONE
        chosen = points(options.grid, options.points)
        paths = write(expand(options.recipe, chosen, options.ranks), out)
    except TrainerError as error:
        for fault in str(error).splitlines():
            emit("error", text=fault)
        return Exit.RECIPE
    failed = 0
    for name, path in paths.items():
        command = (options.run or options.submit or "{recipe}").replace("{recipe}", shlex.quote(str(path)))
        if options.run:
            code = subprocess.run(shlex.split(command), check=False).returncode  # noqa: S603 (the user's own)
            emit("swept", run=name, exit=code)
            failed |= code != 0
        else:
            sys.stdout.write(command + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
