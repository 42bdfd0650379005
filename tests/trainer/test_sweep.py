"""Sweeps: every point checked before any starts, nothing overwritten, runs in turn, a table of figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from trainer.config import load_recipe
from trainer.folders import open_folder
from trainer.sweep import main

RECIPES = Path(__file__).parents[2] / "trainer" / "recipes"
TINY = str(RECIPES / "tiny-cpu.yaml")
GRID = ("--grid", "optimizer.lr=1e-4,3e-4", "--grid", "seed=0,1,2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def errors(capsys, *arguments: str) -> list[str]:
    assert main([*arguments]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[trainer] error text=") for line in lines)
    return lines


def test_a_grid_is_the_product_and_every_run_is_kept_apart(capsys):
    assert main([TINY, *GRID]) == 0
    told = capsys.readouterr().out.splitlines()
    recipes = [load_recipe(path) for path in told]
    assert [(r.optimizer.lr, r.seed) for r in recipes] == [
        (1e-4, 0), (1e-4, 1), (1e-4, 2), (3e-4, 0), (3e-4, 1), (3e-4, 2),
    ]  # fmt: skip
    assert recipes[0].name == "tiny-cpu-lr1e-4-seed0"
    assert recipes[0].checkpoint.folder == "runs/tiny-cpu-lr1e-4-seed0/checkpoints"
    for places in (
        [r.name for r in recipes],
        [r.checkpoint.folder for r in recipes],
        [r.tracking.jsonl for r in recipes],
    ):
        assert len(set(places)) == 6
    base = load_recipe(TINY)
    changed = {"name", "optimizer", "seed", "checkpoint", "tracking"}
    assert recipes[5].model_dump(exclude=changed) == base.model_dump(exclude=changed)
    assert sorted(Path("sweeps/tiny-cpu").iterdir()) == sorted(map(Path, told))


def test_values_are_yaml_and_points_may_be_listed():
    Path("points.yaml").write_text(
        "- {optimizer.lr: 1e-4, parallel.activation_checkpointing: full}\n"
        "- {model.freeze: [vision, lm_head]}\n"
    )
    assert main([TINY, "--points", "points.yaml", "--out", "listed"]) == 0
    recipes = {path.stem: load_recipe(path) for path in Path("listed").iterdir()}
    assert len(recipes) == 2
    assert any(r.model.freeze == ("vision", "lm_head") for r in recipes.values())
    assert any(
        r.parallel.activation_checkpointing == "full" and r.optimizer.lr == 1e-4 for r in recipes.values()
    )
    assert main([TINY, "--grid", "model.freeze=[vision],[vision,text]", "--out", "lists"]) == 0
    freezes = {load_recipe(path).model.freeze for path in Path("lists").iterdir()}
    assert freezes == {("vision",), ("vision", "text")}


def test_a_fault_in_any_point_stops_all_of_them(capsys):
    grid = ("--grid", "optimizer.lr=1e-4,-1", "--grid", "parallel.mode=fsdp,hdsp", "--ranks", "2")
    lines = errors(capsys, TINY, *grid, "--run", "touch started")
    # -1 with fsdp, hdsp with 1e-4, both with both.
    assert len(lines) == 4
    assert "optimizer.lr=-1 parallel.mode=fsdp: optimizer.lr" in lines[1]
    assert not Path("sweeps").exists()
    assert not Path("started").exists()


def test_each_fault_is_one_line(capsys):
    Path("scalar.yaml").write_text("3")
    for arguments, told in (
        ((), "--grid: given nothing"),
        (("--grid", "seed"), "--grid: given seed"),
        (("--grid", "seed=[1"), "path=value,value"),
        (("--grid", "seed=0", "--grid", "seed=1"), "each path once"),
        (("--points", "absent.yaml"), "--points: given absent.yaml"),
        (("--points", "scalar.yaml"), "a YAML list"),
        (("--grid", "seed=1,1"), "given a point or a folder twice"),
        (("--grid", "seed=1,2", "--grid", "checkpoint.folder=one"), "given a point or a folder twice"),
        (("--grid", "global_batch=18", "--ranks", "2"), "set it to 16 or 24"),
        (("--report", "loss"), "a folder of recipes"),
    ):
        (line,) = errors(capsys, TINY, *arguments)
        assert told in line, line
    (line,) = errors(capsys, "absent.yaml", "--grid", "seed=1")
    assert "a readable file" in line


def test_the_recipes_hardware_says_how_many_ranks_a_run_has(capsys):
    (line,) = errors(capsys, str(RECIPES / "7b-p5en-8node.yaml"), "--grid", "global_batch=1024,1000")
    assert "global_batch=1000: global_batch: given 1000 for micro_batch 8 on 64 data ranks" in line


def test_nothing_is_overwritten_and_the_same_sweep_goes_on(capsys):
    assert main([TINY, *GRID]) == 0
    assert main([TINY, *GRID]) == 0
    edited = Path("sweeps/tiny-cpu/tiny-cpu-lr3e-4-seed1.yaml")
    edited.write_text(edited.read_text() + "# mine\n")
    capsys.readouterr()
    (line,) = errors(capsys, TINY, *GRID)
    assert f"{edited} with other content" in line
    assert edited.read_text().endswith("# mine\n")


def test_submit_prints_and_run_runs_in_turn(capfd):
    assert main([TINY, "--grid", "seed=0,1", "--submit", "sbatch --nodes 2 train.sbatch {recipe}"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"sbatch --nodes 2 train.sbatch sweeps/tiny-cpu/tiny-cpu-seed{seed}.yaml" for seed in (0, 1)
    ]
    code = "import sys, yaml; s = yaml.safe_load(open(sys.argv[1]))['seed']; print('seed', s); "
    code += "sys.exit(3 * (s == 0))"
    assert main([TINY, "--grid", "seed=0,1", "--run", f'{sys.executable} -c "{code}" {{recipe}}']) == 1
    assert capfd.readouterr().out.splitlines() == [
        "seed 0",
        "[trainer] swept run=tiny-cpu-seed0 exit=3",
        "seed 1",
        "[trainer] swept run=tiny-cpu-seed1 exit=0",
    ]


def test_the_report_ranks_by_evaluation_or_by_the_log(capsys):
    assert main([TINY, "--grid", "seed=0,1,2,3"]) == 0
    for path in Path("sweeps/tiny-cpu").iterdir():
        recipe = yaml.safe_load(path.read_text())
        seed, log = recipe["seed"], Path(recipe["tracking"]["jsonl"])
        if seed == 3:  # has not started
            continue
        log.parent.mkdir(parents=True)
        steps = [{"kind": "step", "step": step, "loss": 10.0 + seed - step} for step in (1, 2)]
        log.write_text("".join(json.dumps(entry) + "\n" for entry in steps) + '{"kind": "st')
        for step in (5, 12):
            scores = {"step": step, "trajectory": {"ade": 4.0 - seed if step == 12 else 0.0}}
            open_folder(recipe["checkpoint"]["folder"]).put(
                f"evaluations/step-{step:08d}.json", json.dumps(scores).encode()
            )
    capsys.readouterr()
    assert main([TINY, "--report", "trajectory.ade"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["run", "trajectory.ade", "step"],
        ["tiny-cpu-seed2", "2", "12"],
        ["tiny-cpu-seed1", "3", "12"],
        ["tiny-cpu-seed0", "4", "12"],
        ["tiny-cpu-seed3", "-", "-"],
    ]
    assert main([TINY, "--report", "loss", "--highest"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[0] == ["tiny-cpu-seed2", "10", "2"]
    assert [row[0][-1] for row in rows] == ["2", "1", "0", "3"]
