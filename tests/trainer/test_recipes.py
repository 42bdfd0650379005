"""Recipes for real hardware: they load, have the size that they say, and fit the nodes that AWS has."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.trainer.factory import VOCABULARY
from trainer.architectures import ARCHITECTURES, qwen3_vl
from trainer.config import check_world, load_recipe
from trainer.errors import TrainerError
from trainer.memory import GIB, Hardware, check_fits, planned
from trainer.mesh import sizes
from trainer.train import main

ROOT = Path(__file__).parents[2]
NAMES = ("400m-p5-1node", "7b-p5en-8node", "32b-p6-b200-16node")
# The recipes read Qwen's tokenizer: its ids with ours behind them.
QWEN = type(VOCABULARY)(
    vocab_size=151673, image_id=151655, lidar_id=151669, radar_id=151670, action_id=151671
)


@pytest.fixture(scope="module", params=NAMES)
def recipe(request):
    return load_recipe(ROOT / "trainer" / "recipes" / f"{request.param}.yaml")


@pytest.fixture(scope="module")
def memory(recipe):
    return planned(recipe, QWEN, recipe.hardware.nodes * recipe.hardware.accelerators)


@pytest.fixture(scope="module")
def instances():
    """The infrastructure's table, read as a file: the trainer imports nothing of it."""
    path = ROOT / "constructs" / "trainshed" / "planning" / "instances.py"
    spec = importlib.util.spec_from_file_location("instance_table", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module.INSTANCE_TYPES
    del sys.modules[spec.name]


def text_of(recipe) -> str:
    return (ROOT / "trainer" / "recipes" / f"{recipe.name}.yaml").read_text()


def test_every_recipe_is_tested_here_or_runs_on_a_cpu():
    stated = {path.stem for path in (ROOT / "trainer" / "recipes").glob("*.yaml")}
    needs = {
        name for name in stated if load_recipe(ROOT / f"trainer/recipes/{name}.yaml").hardware.accelerators
    }
    assert needs == set(NAMES)


def test_the_hardware_is_as_the_infrastructure_knows_it(recipe, instances):
    hardware, instance = recipe.hardware, instances[recipe.hardware.instance]
    assert instance.is_gpu
    assert hardware.accelerators == instance.accelerators
    assert hardware.memory_gib == instance.accelerator_memory_gib
    size, family, nodes = re.fullmatch(r"(\d+[mb])-(.+)-(\d+)node", recipe.name).groups()
    assert recipe.model.base == size
    assert instance.family == family
    assert hardware.nodes == int(nodes)


def test_local_disks_and_cores_are_there(recipe, instances):
    instance = instances[recipe.hardware.instance]
    cache = recipe.data.cache
    assert Path(cache.directory).is_relative_to(instance.nvme_mount("slurm"))
    assert cache.limit_bytes < 0.9 * instance.nvme_disks * instance.nvme_gb_each * 1e9
    assert recipe.hardware.accelerators * (recipe.data.workers + 1) <= instance.vcpus
    assert recipe.data.lanes == recipe.hardware.nodes


def test_parameters_match_the_name(recipe, memory):
    size = recipe.name.partition("-")[0]
    stated = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert memory.parameters == pytest.approx(stated, rel=0.12)


def test_memory_fits_and_is_as_stated(recipe, memory):
    check_fits(memory, recipe.hardware)
    used, of = map(int, re.search(r"^# Memory: about (\d+) of (\d+) GiB", text_of(recipe), re.M).groups())
    assert (used, of) == (round(memory.total / GIB), recipe.hardware.memory_gib)
    # Weights, gradients and moments in float32, counted by hand: 16 bytes a parameter over the shards.
    assert memory.weights + memory.optimizer == pytest.approx(12 * memory.parameters / 8, rel=0.01)


def test_a_larger_micro_batch_does_not_fit_and_the_cure_is_named(recipe):
    world = recipe.hardware.nodes * recipe.hardware.accelerators
    too_much = recipe.model_copy(update={"micro_batch": 16 * recipe.micro_batch})
    with pytest.raises(TrainerError, match=r"raise parallel\.shard \(a node has 8\).*lower micro_batch"):
        check_fits(planned(too_much, QWEN, world), recipe.hardware)


def test_the_mesh_shards_inside_a_node_and_replicates_across(recipe):
    hardware = recipe.hardware
    world = hardware.nodes * hardware.accelerators
    check_world(recipe, world)
    replicate, shard, tensor = sizes(recipe.parallel, world)
    assert hardware.accelerators % (shard * tensor) == 0
    assert (replicate * shard * tensor, replicate) == (world, hardware.nodes)
    check_world(recipe, 2 * world)  # more nodes need no other recipe


def test_tokens_of_a_step_are_as_stated(recipe):
    found = re.search(
        r"^# A step: at most (\d+) samples of (\d+) tokens, (\d+) tokens\.$", text_of(recipe), re.M
    )
    samples, tokens, total = map(int, found.groups())
    world = recipe.hardware.nodes * recipe.hardware.accelerators
    assert samples == recipe.accumulation(world) * recipe.micro_batch * world
    assert tokens == recipe.data.processor.max_tokens
    assert total == samples * tokens


def test_the_processor_leaves_the_places_that_the_encoders_fill(recipe):
    assert recipe.data.processor.lidar_tokens == recipe.model.lidar.tokens
    assert recipe.data.processor.radar_tokens == recipe.model.radar.tokens
    vision = qwen3_vl(recipe.model.base).vision_config
    assert recipe.data.processor.patch_size == vision.patch_size
    assert recipe.data.processor.merge_size == vision.spatial_merge_size


def test_a_run_is_kept_apart_and_can_be_continued(recipe):
    assert recipe.checkpoint.folder == f"/fsx/checkpoints/{recipe.name}"
    assert recipe.checkpoint.keep_every % recipe.checkpoint.every == 0
    assert recipe.steps % recipe.checkpoint.every == 0
    assert all(stream.url.startswith("s3://") for stream in recipe.data.streams)
    assert recipe.evaluation.url not in {stream.url for stream in recipe.data.streams}


@pytest.mark.parametrize("name", NAMES)
def test_without_gpus_it_refuses_in_one_line(name, capsys):
    assert main([str(ROOT / "trainer" / "recipes" / f"{name}.yaml"), "--set", "parallel.shard=1"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "no CUDA device here" in line
    assert "--set hardware.accelerators=0" in line


def test_hardware_may_be_a_note_for_people():
    assert Hardware.model_validate("any CPU") == Hardware(note="any CPU")
    assert Hardware().accelerators == 0


# config.json of Qwen/Qwen3-VL-8B-Instruct and Qwen/Qwen3-VL-32B-Instruct, as published.
PUBLISHED = {
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
    },
    "32b": {
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "intermediate_size": 25600,
    },
}
TEXT = {
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 5000000,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "hidden_act": "silu", "attention_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304, "in_channels": 3,
    "deepstack_visual_indexes": [8, 16, 24], "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_sizes_are_the_published_ones(name):
    config = qwen3_vl(name)
    text, vision = config.text_config.to_dict(), config.vision_config.to_dict()
    assert {key: text[key] for key in PUBLISHED[name] | TEXT} == PUBLISHED[name] | TEXT
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    assert text["rope_scaling"] == rope
    assert {key: vision[key] for key in VISION} == VISION
    assert vision["out_hidden_size"] == text["hidden_size"]
    assert config.tie_word_embeddings is False


def test_every_size_has_the_familys_shape():
    for name in ARCHITECTURES:
        text = qwen3_vl(name).text_config
        assert sum(text.rope_scaling["mrope_section"]) == text.head_dim // 2, name
        assert text.rope_theta == TEXT["rope_theta"], name
