"""Reinforcement learning through trl: the policy reads what training packs, the reward rises, runs go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from streaming import MDSWriter

from tests.trainer.runs import ROOT, tensors
from trainer import evaluate, export, rl
from trainer.answers import greedy
from trainer.cache import CacheConfig
from trainer.checkpoint import CheckpointConfig, Checkpointer
from trainer.collate import Processor, ProcessorConfig, collate
from trainer.config import load_recipe
from trainer.folders import open_folder
from trainer.grpo import GroupTrainer, _arguments
from trainer.model import ModelConfig, build_model
from trainer.policy import Policy, Scenes, SceneTokenizer
from trainer.publish import check
from trainer.samples import COLUMNS, REWARD_COLUMNS, Sample
from trainer.source import DataConfig, Source
from trainer.state import ModelState
from trainer.synthesize import Scale, generate
from trainer.tracking import Tracker

SMALL = Scale(cameras=1, side=32, lidar=16, radar=8)
PROCESSOR = ProcessorConfig(max_lidar=16, max_radar=8)
SHORT = "Go."  # a shorter question than the data's own: the tests run on it, not the claims
SFT_STEPS = 40
# `TRAINSHED_REPEATS=20`: the long form.
LONG = int(os.environ.get("TRAINSHED_REPEATS", "3")) >= 20
MORE_RUNS = [("grpo", 1), ("grpo", 2), ("dapo", 0), ("dapo", 1), ("dapo", 2)] if LONG else []


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Scenes to drive through, and weights that have just learned to write controls."""
    folder = tmp_path_factory.mktemp("rl")
    for split, count, seed in (("train", 256, 7), ("val", 128, 8)):
        columns = {**COLUMNS, **REWARD_COLUMNS}
        with MDSWriter(out=str(folder / split), columns=columns, hashes=["sha1"]) as writer:
            for one in generate(count, seed, scale=SMALL, stage="rl"):
                writer.write({**one, "prompt": SHORT})
    told = [Sample.from_columns(one) for one in generate(256, 0, scale=SMALL, stage="cot")]
    told = [replace(one, prompt=SHORT, answer=one.answer[one.answer.index("=") :]) for one in told]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    processor, order = Processor(PROCESSOR), np.random.default_rng(0)
    model = build_model(ModelConfig(), processor, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    for step in range(SFT_STEPS):
        optimizer.param_groups[0]["lr"] = 5e-3 * min(1, (step + 1) / 10)
        for part in np.split(order.integers(0, len(told), 16), 2):
            output = model(collate([told[row] for row in part], processor))
            (output.losses["text"] / output.counts["text"] / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    checkpoints = Checkpointer(
        CheckpointConfig(folder=str(folder / "sft/checkpoints"), mode="sync"), run="sft"
    )
    checkpoints.save(SFT_STEPS, {"model": ModelState(model)}, urgent=True)
    checkpoints.close()
    torch.set_num_threads(threads)
    recipe = {
        "name": "drive",
        "steps": 3,
        "global_batch": 64,
        "micro_batch": 32,
        "data": {
            "streams": [{"url": str(folder / "train")}],
            "cache": {"directory": str(folder / "cache")},
            "processor": PROCESSOR.model_dump(),
        },
        "evaluation": {"url": str(folder / "val"), "micro_batch": 64},
        "rl": {"group": 8, "max_tokens": 20},
        "parallel": {"mode": "none"},
        "optimizer": {"lr": 5e-4, "weight_decay": 0.0},
        "schedule": {"kind": "constant", "warmup": 2},
        "checkpoint": {
            "folder": str(folder / "checkpoints"),
            "initial": str(folder / f"sft/checkpoints/step-{SFT_STEPS:08d}"),
        },
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))  # which is YAML
    return folder


@pytest.fixture
def scenes(work):
    data = DataConfig(
        streams=({"url": str(work / "train")},),
        cache=CacheConfig(directory=str(work / "cache")),
        processor=PROCESSOR,
    )
    return Scenes(Source(data, 0, 64), Processor(PROCESSOR))


@pytest.fixture
def actor(scenes):
    model = build_model(ModelConfig(), scenes.processor, seed=3).eval()
    with torch.no_grad():  # so that it writes bytes, all of them, and no placeholders
        model.core.lm_head.weight[256:] = 0
    return model


def run(work, *settings):
    """`trainer.rl` in this process: its exit code."""
    flags = [part for setting in settings for part in ("--set", setting)]
    with one_process():
        return rl.main([str(work / "recipe.yaml"), *flags])


@contextlib.contextmanager
def one_process():
    """What a command sets for its whole process is put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if dist.is_initialized():
            dist.destroy_process_group()


def values(line):
    """Numbers of one line."""
    return {name: float(value) for name, value in re.findall(r"(\w+)=(-?[\d.e+-]+)(?= |$)", line)}


# ------------------------------------------------------------------------------------------ policy


def test_policy_reads_what_supervised_training_packs(scenes, actor):
    """Rows padded on both sides against one packed row: the same logits for each token of each answer."""
    policy = Policy(actor, scenes).eval()
    numbers, answers = [3, 5, 200, 3], ["no lead = aa bb", "x", "", "road"]
    samples = [
        replace(one, answer=answer) for one, answer in zip(scenes.samples(numbers), answers, strict=True)
    ]
    packed = collate(samples, scenes.processor)
    prompts = [scenes.prompt(number) for number in numbers]
    rows = [
        [*prompt, *answer.encode(), scenes.processor.eos_id]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    width = max(map(len, prompts)) + 3
    ids = torch.full((4, width + 20), scenes.processor.pad_id)
    mask = torch.zeros_like(ids)
    for row, (whole, prompt) in enumerate(zip(rows, prompts, strict=True)):
        place = slice(width - len(prompt), width - len(prompt) + len(whole))
        ids[row, place], mask[row, place] = torch.tensor(whole), 1
    with torch.no_grad():
        ours = policy(ids, attention_mask=mask).logits
        theirs = actor(packed, all_logits=True).logits[0]
    for row in range(4):
        mine = ours[row][mask[row].bool()][1:]  # without the scene's number
        assert torch.allclose(mine, theirs[packed.segment[0] == row][:-1], atol=1e-5)  # without <action>


def test_answers_with_a_cache_are_those_of_whole_forwards(scenes, actor):
    numbers = [1, 9, 30]
    found = Policy(actor, scenes).eval().answers(numbers, max_tokens=12)
    prompts = collate(scenes.samples(numbers), scenes.processor, answers=False)
    with torch.no_grad():
        wanted = greedy(actor, prompts, scenes.processor, most=12)
    assert found == [scenes.processor.tokenizer.decode(ids) for ids in wanted]
    assert len(set(found)) > 1  # the scenes differ, so do the answers


def test_every_sensor_changes_what_the_policy_says(scenes, actor):
    policy, number = Policy(actor, scenes).eval(), 4
    ids = torch.tensor([scenes.prompt(number)])

    def logits(**changes):
        scenes._kept[number] = replace(sample, **changes)
        with torch.no_grad():
            return policy(ids, attention_mask=torch.ones_like(ids)).logits[0, -1]

    sample = scenes.samples([number])[0]
    plain = logits()
    assert torch.equal(logits(), plain)
    for name in ("images", "lidar", "radar"):
        other = getattr(scenes.samples([number + 1])[0], name)
        assert not torch.allclose(logits(**{name: other}), plain, atol=1e-5), name
    # What only the reward knows does not.
    assert torch.equal(logits(lane=sample.lane + 5, tracks=sample.tracks + 5, answer="= mm"), plain)


def test_memory_of_scenes_is_bounded_and_right(work, scenes):
    # Positions run on into the next epoch: as many as one likes.
    first = [one.id for one in scenes.samples(range(700))]
    assert len(scenes._kept) <= 512
    assert [one.id for one in scenes.samples(range(700))] == first
    assert sorted(first[:256]) == sorted(set(first[:256]))
    words = SceneTokenizer(scenes)
    assert words(text=["5", "7"])["input_ids"] == [scenes.prompt(5), scenes.prompt(7)]
    assert words.batch_decode([[*b"= lm", scenes.processor.eos_id]]) == ["= lm"]


# ------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize(("algorithm", "seed"), [("grpo", 0), *MORE_RUNS])
def test_two_processes_raise_the_reward(work, algorithm, seed):
    """torchrun, gloo: the held-out reward of drawn answers rises clearly; the weights are published."""
    out = work / f"{algorithm}-{seed}"
    flags = [
        part
        for setting in (
            "parallel={mode: ddp, replicate: -1}",
            "steps=24",
            f"rl.algorithm={algorithm}",
            f"seed={seed}",
            "rl.decoding=sampled",
            f"checkpoint.folder={out}/checkpoints",
            f"tracking.jsonl={out}/metrics.jsonl",
        )
        for part in ("--set", setting)
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer.rl"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, *launcher, str(work / "recipe.yaml"), *flags],
        env=environment, cwd=work, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    steps = [values(line) for line in lines if line.startswith("[trainer] rl step=")]
    assert [step["step"] for step in steps] == list(range(1, 25))
    assert all({"reward", "progress", "collision", "comfort", "lane", "lr"} <= set(step) for step in steps)
    told = values(next(line for line in lines if line.startswith("[trainer] rl_evaluation ")))
    assert told["readable_before"] > 0.5  # supervised training taught the words
    print(f"{algorithm} seed {seed}: {told['reward_before']:.3f} -> {told['reward_after']:.3f}")
    assert told["reward_after"] > told["reward_before"] + 0.15, told
    marker = check(open_folder(str(out / "checkpoints")), "step-00000024", run="drive")
    assert marker.world == 2
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in records].count("rl") == 24
    result = next(one for one in records if one["kind"] == "rl_evaluation")
    assert result["reward_after"] == pytest.approx(told["reward_after"])


@pytest.mark.parametrize(("algorithm", "saving"), [("grpo", "none"), ("dapo", "full")])
def test_a_run_stops_at_a_signal_and_goes_on(work, capsys, monkeypatch, algorithm, saving):
    """With a reference, one process; weights of the heads stay, those that write move."""
    folder = work / algorithm
    settings = (
        f"rl.algorithm={algorithm}", "rl.beta=0.1", f"parallel.activation_checkpointing={saving}",
        "global_batch=16", "micro_batch=8", "steps=4",
        f"checkpoint.folder={folder}/checkpoints", "evaluation.limit=6", "rl.max_tokens=16",
    )  # fmt: skip
    plain = Tracker.step

    def step(self, number, metrics, **kind):
        plain(self, number, metrics, **kind)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "step", step)
        assert run(work, *settings) == 75
    first = capsys.readouterr().out
    assert "stopped step=2 signal=SIGTERM saved=True" in first or "stopped step=3 signal=SIGTERM" in first
    assert run(work, *settings) == 0
    second = capsys.readouterr().out
    done = int(re.search(r"resumed step=(\d)", second)[1])
    told = [values(line) for line in (first + second).splitlines() if " rl step=" in line]
    assert [one["step"] for one in told] == [1, 2, 3, 4]
    assert told[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert told[3]["kl"] > 0
    before = [re.search(r"started .* reward=(\S+)", text)[1] for text in (first, second)]
    assert before[0] == before[1]  # rated once, carried along
    start = tensors(work / "sft", SFT_STEPS)
    end = tensors(folder, 4)
    for name, weight in start.items():
        moved = not torch.equal(end[name], weight)
        assert moved != name.startswith("model.heads"), name
    assert done in (2, 3)


def test_a_run_that_is_over_only_rates(work, capsys):
    settings = (f"checkpoint.folder={work}/over", "global_batch=8", "micro_batch=8", "evaluation.limit=4")
    assert run(work, *settings, "steps=1") == 0
    first = capsys.readouterr().out
    assert run(work, *settings, "steps=1") == 0
    again = capsys.readouterr().out
    rated = [next(line for line in text.splitlines() if "rl_evaluation" in line) for text in (first, again)]
    assert rated[0] == rated[1]
    assert " rl step=" not in again
    assert run(work, *settings, "steps=2", "rl.decoding=sampled") == 2  # before and after would not compare
    assert "evaluation: given" in capsys.readouterr().out
    read = ["--checkpoint", str(work / "over"), "--out"]
    with one_process():
        assert evaluate.main([*read, str(work / "evaluation"), "--limit", "4"]) == 0
        assert export.main([*read, str(work / "exported")]) == 0
    assert json.loads((work / "evaluation/evaluation.json").read_text())["step"] == 1
    assert (work / "exported/config.json").exists()


def test_a_gradient_that_is_no_number_ends_the_run(work, capsys, monkeypatch):
    plain = GroupTrainer._compute_loss
    monkeypatch.setattr(GroupTrainer, "_compute_loss", lambda *given: plain(*given) * float("nan"))
    settings = (f"checkpoint.folder={work}/nan", "global_batch=8", "micro_batch=8", "evaluation.limit=4")
    assert run(work, *settings, "checkpoint.every=1") == 70
    assert '[trainer] FATAL reason=nan step=1 message="gradient norm nan"' in capsys.readouterr().out
    assert not list((work / "nan").glob("step-*"))  # no weights that are no numbers


# ------------------------------------------------------------------------------------------ settings


def test_algorithms_mean_what_their_papers_say(work, scenes, actor):
    policy = Policy(actor, scenes)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = {}
        for algorithm in ("grpo", "dapo"):
            recipe = load_recipe(work / "recipe.yaml", [f"rl.algorithm={algorithm}", "rl.epsilon=0.15"])
            found[algorithm] = _arguments(recipe, policy, done=1, folder=str(work / "trl"))
        wider = load_recipe(work / "recipe.yaml", ["rl.epsilon_high=0.4"])
        assert _arguments(wider, policy, done=0, folder=str(work / "trl")).epsilon_high == 0.4
    finally:
        dist.destroy_process_group()
    grpo, dapo = found["grpo"], found["dapo"]
    assert (grpo.loss_type, grpo.epsilon, grpo.epsilon_high) == ("grpo", 0.15, 0.15)
    assert (dapo.loss_type, dapo.epsilon, dapo.epsilon_high) == ("dapo", 0.15, 0.28)
    assert (grpo.mask_truncated_completions, dapo.mask_truncated_completions) == (False, True)
    assert (grpo.max_steps, grpo.num_generations, grpo.gradient_accumulation_steps) == (2, 8, 2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["rl=null"], "rl: given nothing; allowed a mapping"),
        (["rl.algorithm=ppo"], "rl.algorithm: given 'ppo'; allowed 'grpo' or 'dapo'"),
        (["rl.group=1"], "rl.group: given 1"),
        (["rl.grup=8"], "rl.grup: given an unknown key"),
        (["global_batch=36", "micro_batch=4"], "global_batch: given 36; allowed multiples of rl.group, 8"),
        (["parallel={mode: fsdp}"], "parallel: given fsdp, tensor 1, compile False; allowed whole replicas"),
        (
            ["hardware={instance: ml.p5.48xlarge, nodes: 1, accelerators: 1, memory_gib: 80}"],
            "no CUDA device",
        ),
        (["evaluation.url=null"], "evaluation.url: given nothing; allowed a held-out data set"),
        (["checkpoint.initial=null"], "checkpoint.initial: given nothing"),
        (["checkpoint.initial=/nowhere"], "checkpoint: given /nowhere; allowed FOLDER/step-NNNNNNNN"),
    ],
)
def test_wrong_recipes_are_told_in_a_line(work, capsys, settings, told):
    assert run(work, f"checkpoint.folder={work}/wrong", *settings) == 2
    out = capsys.readouterr().out
    assert told.replace('"', "") in out.replace("\\", "").replace('"', "")


def test_scenes_that_cannot_be_rated_are_refused_before_training(work, tmp_path, capsys):
    with MDSWriter(out=str(tmp_path / "sft"), columns=COLUMNS, hashes=["sha1"]) as writer:
        for one in generate(8, 7, scale=SMALL):
            writer.write(one)
    settings = (f"checkpoint.folder={tmp_path}/c", f"evaluation.url={tmp_path}/sft")
    assert run(work, *settings) == 2
    assert "without lane, tracks or trajectory" in capsys.readouterr().out
    assert not list(Path(tmp_path / "c").glob("step-*"))
