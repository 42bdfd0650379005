"""Recipes: all faults at once, one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from trainer.config import ConfigError, Recipe, check_world, load_recipe
from trainer.errors import TrainerError
from trainer.train import main, parse

RECIPES = Path(__file__).parents[2] / "trainer" / "recipes"
TINY = RECIPES / "tiny-cpu.yaml"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_named_like_its_file(path):
    assert load_recipe(path).name == path.stem


def test_dotted_paths_override_with_yaml_values():
    recipe = load_recipe(
        TINY,
        [
            "optimizer.lr=1e-4",
            "parallel.mode=ddp",
            "parallel.shard=1",
            "parallel.replicate=-1",
            "seed=7",
            "data.streams=[{url: a}, {url: b, weight: 2}]",
            "checkpoint.keep_every=null",
            "tracking.comet.mode=offline",
        ],
    )
    assert recipe.optimizer.lr == 1e-4
    assert recipe.parallel.replicate == -1
    assert [stream.url for stream in recipe.data.streams] == ["a", "b"]
    assert recipe.tracking.comet.mode == "offline"
    assert recipe.seed == 7


def test_all_faults_are_told_together_with_what_was_meant():
    overrides = [
        "chekpoint.every=5",
        "optimizer.lrr=1",
        "parallel.mode=hdsp",
        "steps=0",
        "nonsense",
        "steps.x=1",
    ]
    with pytest.raises(ConfigError) as refused:
        load_recipe(TINY, overrides)
    text = str(refused.value)
    assert len(refused.value.faults) == len(text.splitlines()) == 6
    assert "chekpoint: given an unknown key" in text
    assert "did you mean checkpoint?" in text
    assert "optimizer.lrr" in text
    assert "did you mean lr?" in text
    assert "did you mean hsdp?" in text
    assert "steps: given 0" in text
    assert "--set: given nonsense; allowed path=value" in text
    assert "--set steps.x" in text


@pytest.mark.parametrize("content", ["- a list", "a: [", ""])
def test_what_is_no_recipe(tmp_path, content):
    path = tmp_path / "r.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="recipe: given"):
        load_recipe(path)
    with pytest.raises(ConfigError, match="readable file"):
        load_recipe(tmp_path / "absent.yaml")


def test_a_recipe_cannot_be_changed_after_it_was_checked():
    recipe = load_recipe(TINY)
    with pytest.raises(Exception, match="frozen"):
        recipe.steps = 3


def test_the_global_batch_must_fit_and_the_neighbours_are_named():
    recipe = load_recipe(TINY, ["global_batch=18"])
    with pytest.raises(TrainerError, match="multiples of 8; fix: set it to 16 or 24"):
        recipe.accumulation(2)
    assert load_recipe(TINY).accumulation(2) == 2
    with pytest.raises(TrainerError, match="set it to 8"):
        load_recipe(TINY, ["global_batch=4"]).accumulation(2)


def test_the_mesh_must_hold_all_ranks():
    recipe = load_recipe(TINY, ["parallel.mode=hsdp", "parallel.replicate=2", "parallel.shard=3"])
    with pytest.raises(ConfigError, match=r"replicate \* shard \* tensor = 4"):
        check_world(recipe, 4)
    with pytest.raises(ConfigError, match="global_batch"):
        check_world(load_recipe(TINY), 3)
    with pytest.raises(ConfigError, match=r"none for 2 ranks|start one process"):
        check_world(load_recipe(TINY, ["parallel.mode=none", "parallel.shard=1"]), 2)
    check_world(load_recipe(TINY), 4)


def test_the_recipe_survives_its_own_dump():
    recipe = load_recipe(TINY)
    assert Recipe.model_validate(yaml.safe_load(yaml.safe_dump(recipe.model_dump(mode="json")))) == recipe


def test_flags_are_not_abbreviated_and_torchrun_does_not_take_them():
    """Silent error 10: torchrun's parser must find nothing of ours that begins like a flag of its own."""
    with pytest.raises(SystemExit):
        parse(["r.yaml", "--se", "a=1"])
    arguments = ["--nproc-per-node=2", "-m", "trainer.train", "r.yaml", "--set", "a=1", "--set", "b=2"]
    left = get_args_parser().parse_args(arguments).training_script_args
    assert left == arguments[3:]
    flags = [flag for action in get_args_parser()._actions for flag in action.option_strings]
    assert not [flag for flag in flags if flag.startswith("--set")]


def test_a_wrong_recipe_exits_2_with_lines_and_without_a_traceback(capsys):
    assert main([str(TINY), "--set", "seeed=1", "--set", "model.bse=x"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert [entry.split(" text=")[0] for entry in out] == ["[trainer] error"] * 2


def test_the_trainer_imports_neither_the_cloud_kit_nor_the_platform():
    foreign = {"aws_cdk", "trainshed", "streaming", "comet_ml"}
    code = f"import sys, trainer.train; assert not {foreign} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=RECIPES.parents[1])
