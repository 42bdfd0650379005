"""Checkpoints scored on data they have not seen: answers, scores, the command, and learning itself."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.buckets import s3_server
from tests.trainer.runs import ROOT, Run
from trainer import evaluate, plots
from trainer.answers import greedy, only, texts, with_replies
from trainer.collate import Processor, ProcessorConfig, collate
from trainer.model import ModelConfig, build_model
from trainer.publish import MARKER, name_of
from trainer.samples import Sample
from trainer.stores import open_store
from trainer.synthesize import Scale, generate, synthesize
from trainshed.planning.workload import SCRATCH, EvaluationPlan, evaluation_arguments

SCALE = Scale(cameras=1, side=32, lidar=64, radar=8)
STEPS = 60
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def processor():
    return Processor(ProcessorConfig(max_lidar=64, max_radar=8))


@pytest.fixture(scope="module")
def samples():
    return [
        Sample.from_columns(one) for one in generate(6, 3, scale=Scale(cameras=2, side=32, lidar=32, radar=8))
    ]


# ----------------------------------------------------------------------------------------- answers

PACKED = ("input_ids", "position_ids", "segment")


def assert_same(ours, theirs, names=PACKED):
    for name in names:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other, name


def test_replies_are_packed_as_the_training_packs_answers(samples, processor):
    told, asked = collate(samples, processor), collate(samples, processor, answers=False)
    words = processor.tokenizer
    replies = [[*words.encode(sample.answer), *words.after] for sample in samples]
    assert_same(with_replies(asked, replies, processor), told)
    assert_same(with_replies(asked, [[] for _ in samples], processor), asked)
    assert texts(told, processor) == [sample.answer for sample in samples]


def test_a_part_of_a_batch_is_the_batch_of_that_part(samples, processor):
    keep = [4, 1, 2]
    part = only(collate(samples, processor, answers=False), keep, processor)
    alone = collate([samples[at] for at in keep], processor, answers=False)
    names = {field.name for field in dataclasses.fields(alone)} - {*PACKED, "labels"}
    assert_same(part, alone, names)
    assert_same(with_replies(part, [[]] * 3, processor), alone)


def test_greedy_is_what_each_sample_says_alone(samples, processor):
    """Against one sample at a time, ids and positions made by hand, all logits."""
    model = build_model(ModelConfig(), processor, seed=1).eval()
    with torch.no_grad():
        found = greedy(model, collate(samples, processor, answers=False), processor, most=3)
        for sample, reply in zip(samples, found, strict=True):
            one = collate([sample], processor, answers=False)
            ids, said = one.input_ids[0, : one.tokens - 1].tolist(), []
            grids = [tuple(grid) for grid in one.image_grid_thw.tolist()]
            for _ in range(3):
                row = torch.tensor([ids])
                places = torch.from_numpy(processor.positions(np.array(ids), grids))[:, None]
                whole = dataclasses.replace(
                    one, input_ids=row, position_ids=places, segment=row * 0, labels=row * 0 - 100
                )
                said.append(int(model(whole, all_logits=True).logits[0, -1].argmax()))
                ids.append(said[-1])
            assert reply == said


class Parrot:
    """Says each sample's number, as often as the number is, then ends; counts what it is asked."""

    def __init__(self, processor):
        self.processor, self.asked = processor, []

    def __call__(self, batch):
        self.asked.append(batch.sizes)
        logits = torch.zeros(batch.sizes, self.processor.vocab_size)
        for at, name in enumerate(batch.sample_ids):
            number = int(name.rsplit("-", 1)[1])
            own = batch.input_ids[batch.segment == at]
            said = int((own == 200 + number).sum())  # no byte of a prompt is as high
            logits[at, 200 + number if said < number else self.processor.eos_id] = 1
        return dataclasses.make_dataclass("Output", ["logits"])(logits)


def test_an_answer_ends_at_its_end_token_or_at_the_limit(samples, processor):
    parrot = Parrot(processor)
    replies = greedy(parrot, collate(samples, processor, answers=False), processor, most=4)
    assert replies == [[], [201], [202] * 2, [203] * 3, [204] * 4, [205] * 4]
    assert parrot.asked == [6, 5, 4, 3], "who is done is not asked again"


# --------------------------------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Training and held-out data."""
    folder = tmp_path_factory.mktemp("evaluate")
    synthesize(str(folder / "train"), 2048, 0, scale=SCALE)
    synthesize(str(folder / "val"), 53, 1_000_003, scale=SCALE)
    return folder


@pytest.fixture(scope="module")
def run(place):
    """Two processes, every checkpoint kept."""
    settings = (
        "global_batch=16",
        "micro_batch=8",
        "schedule.kind=cosine",
        "schedule.warmup=10",
        "optimizer.lr=3e-3",
    )
    settings += (f"steps={STEPS}", "checkpoint.every=20", "checkpoint.keep=9", "tracking.every=10")
    settings += (
        f"tracking.comet.folder={place}/comet",
        f"evaluation.url={place}/val",
        "evaluation.answer_tokens=6",
    )
    with Run(place / "run", place / "train", *settings) as run:
        assert run.end() == 0, run.text()
    return run


def score(*arguments: object) -> int:
    """The command in this process."""
    code = evaluate.main(list(map(str, arguments)))
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


def told(text: str) -> dict[str, str]:
    (line,) = [entry for entry in text.splitlines() if entry.startswith("[trainer] evaluation ")]
    return dict(part.split("=", 1) for part in line.split()[2:])


def test_training_beats_constant_velocity_on_held_out_scenes(run, place, tmp_path, capsys):
    """And the command tells the same on one rank and on two, which hold 29 and 24 of the 53 samples."""
    assert score("--checkpoint", run.folder / "checkpoints", "--out", tmp_path / "one") == 0
    line = told(capsys.readouterr().out)
    report = json.loads((tmp_path / "one" / "evaluation.json").read_text())
    assert float(line["ade"]) == pytest.approx(report["trajectory"]["ade"])
    assert float(line["ade_constant_velocity"]) == pytest.approx(report["constant_velocity"]["ade"])
    assert (report["step"], report["samples"], report["held_out"]) == (STEPS, 53, True)
    assert report["checkpoint"] == f"{run.folder}/checkpoints/{name_of(STEPS)}"
    assert (tmp_path / "one" / "evaluation.png").read_bytes().startswith(PNG)
    print("ADE", report["trajectory"]["ade"], "constant velocity", report["constant_velocity"]["ade"])
    assert report["trajectory"]["ade"] < 0.75 * report["constant_velocity"]["ade"]
    assert report["constant_velocity"]["ade"] == pytest.approx(_steady(place), rel=1e-5)

    entries = [json.loads(entry) for entry in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if entry["kind"] == "evaluation"] == [STEPS]
    assert len(list((place / "comet").glob("*.zip"))) == 2, "the run's experiment, and its evaluation"

    two = [sys.executable, "-m", "trainer.launch", "--standalone", "--nproc-per-node=2", "-m"]
    two += ["trainer.evaluate", "--checkpoint", f"{run.folder}/checkpoints/{name_of(STEPS)}", "--out", "two"]
    done = subprocess.run(
        [*two, "--set", "tracking.comet=null", "--set", "evaluation.micro_batch=8"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = (json.loads((tmp_path / out / "evaluation.json").read_text()) for out in ("one", "two"))
    assert (ours["samples"], ours["exact_match"]) == (theirs["samples"], theirs["exact_match"])
    for part in ("trajectory", "constant_velocity", "loss"):
        assert ours[part] == pytest.approx(theirs[part], rel=1e-4), part
    assert ours["boxes"]["map"] == pytest.approx(theirs["boxes"]["map"], abs=1e-3)


def _steady(place) -> float:
    """Constant velocity's ADE straight from the generator, in NumPy."""
    kept = [one for one in generate(53, 1_000_003, scale=SCALE) if np.isfinite(one["trajectory"]).all()]
    errors = []
    for one in kept:
        now, before = one["history"][-1, :2], one["history"][-2, :2]
        ahead = now + (now - before) * np.arange(1, 9)[:, None]
        errors.append(np.linalg.norm(ahead - one["trajectory"][:, :2], axis=1).mean())
    return float(np.mean(errors))


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return os.environ | own | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def test_watchers_killed_and_at_once_leave_one_result_for_each_checkpoint(run, tmp_path):
    """The first is killed between its claim and its result; two others then share the work."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(run.folder / "checkpoints", checkpoints)
    (checkpoints / name_of(40) / MARKER).unlink()  # as if retention had begun to remove it
    place = checkpoints / "evaluations"
    command = [sys.executable, "-m", "trainer.evaluate", "--watch", "--checkpoint", str(checkpoints)]
    command += ["--limit", "8", "--poll-s", "0.2", "--lease-s", "20", "--set", "tracking.comet=null"]
    logs = [tmp_path / f"log-{number}" for number in range(3)]

    def start(log) -> subprocess.Popen:
        with log.open("wb") as out:
            return subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=out, stderr=out)

    watchers = [start(logs[0])]
    try:
        while not list(place.glob("*.claim-*")):
            assert watchers[0].poll() is None, logs[0].read_text()
            time.sleep(0.01)
        watchers[0].kill()
        assert watchers[0].wait() == -9
        assert [path.name for path in place.iterdir()] == [f"{name_of(20)}.claim-0001"]
        watchers += [start(log) for log in logs[1:]]
        assert [watcher.wait(240) for watcher in watchers[1:]] == [0, 0], [log.read_text() for log in logs]
    finally:
        for watcher in watchers:
            watcher.kill()
    scored = re.findall(
        r"^\[trainer\] evaluation step=(\d+) ", "".join(log.read_text() for log in logs), re.M
    )
    assert sorted(scored) == ["20", "60"]
    names = [f"{name_of(step)}.{kind}" for step in (20, 60) for kind in ("json", "png")]
    assert sorted(path.name for path in place.iterdir()) == names
    reports = [json.loads((place / f"{name_of(step)}.json").read_text()) for step in (20, 60)]
    assert [report["step"] for report in reports] == [20, 60]
    assert [report["samples"] for report in reports] == [8, 8]
    assert reports[0]["trajectory"]["ade"] > reports[1]["trajectory"]["ade"], "it learned in between"


def test_a_bucket_is_watched_too_and_a_second_watch_finds_nothing_to_do(run, tmp_path, capsys):
    with s3_server("runs") as (url, _):
        store = open_store(f"{url}/tiny")
        for file in (run.folder / "checkpoints" / name_of(STEPS)).iterdir():
            store.put(file, f"{name_of(STEPS)}/{file.name}")
        options = ("--checkpoint", f"{url}/tiny", "--limit", 8, "--set", "tracking.comet=null", "--watch")
        assert score(*options) == 0
        assert told(capsys.readouterr().out)["url"] == f"{url}/tiny/{name_of(STEPS)}"
        report = json.loads(store.read(f"evaluations/{name_of(STEPS)}.json"))
        assert report["trajectory"]["ade"] < report["constant_velocity"]["ade"]
        assert store.read(f"evaluations/{name_of(STEPS)}.png").startswith(PNG)
        before = dict(store.list("evaluations"))
        assert score(*options) == 0
        assert "[trainer] evaluation" not in capsys.readouterr().out
        assert dict(store.list("evaluations")) == before


def test_the_newest_whole_checkpoint_counts(run, tmp_path, capsys):
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(run.folder / "checkpoints", checkpoints)
    data = next((checkpoints / name_of(STEPS)).glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    out = ("--out", tmp_path / "out", "--limit", 4, "--set", "tracking.comet=null")
    assert score("--checkpoint", checkpoints, *out) == 0
    text = capsys.readouterr().out
    assert re.search(r"^\[trainer\] skipped checkpoint=step-00000060 reason=\"corrupt: ", text, re.M)
    assert told(text)["step"] == "40"
    assert score("--checkpoint", checkpoints / name_of(STEPS), *out) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(r"--checkpoint: given .*corrupt: .*; allowed a whole checkpoint; fix: ", line)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--set", "evaluation.url=null"], r"evaluation.url: given nothing; allowed .*fix: give --data"),
        (["--data", "nowhere"], r"given .*nowhere.*; allowed .*; fix: "),
        (["--limit", "0"], r"evaluation.limit: given 0; allowed .*greater than 0; fix: "),
        (["--set", "evaluation.scene=3"], r"evaluation.scene: given an unknown key; .*mean scenes\?"),
        (["--set", "model.action.hidden=64"], r"checkpoint: given .*; allowed one that fits .*; fix: "),
        (["--checkpoint", "nowhere"], r"given nowhere \(none in it is whole\); allowed .*; fix: "),
        (["--checkpoint", "x/step-00000009"], r"given x/step-00000009 \(not published.*; allowed .*; fix: "),
        (["--checkpoint", "x/step-00000009", "--watch"], r"--watch: given x/.*; allowed a folder.*; fix: "),
        (["--recipe", "nowhere.yaml"], r"recipe: given nowhere.yaml; allowed a readable file; fix: "),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_line(run, monkeypatch, tmp_path, capsys, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    assert score("--checkpoint", run.folder / "checkpoints", "--set", "tracking.comet=null", *arguments) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("[trainer] error text=")
    assert re.search(wanted, line), line
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "data"])


def test_training_data_is_not_called_held_out(run, place, tmp_path):
    options = ("--data", place / "train", "--limit", 4, "--set", "tracking.comet=null")
    assert score("--checkpoint", run.folder / "checkpoints", *options, "--out", tmp_path) == 0
    assert json.loads((tmp_path / "evaluation.json").read_text())["held_out"] is False


# ---------------------------------------------------------------------------------------- pictures


def test_a_runs_curves(run, tmp_path):
    lines = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines) + lines[0][:20])  # killed while writing
    assert plots.main([str(tmp_path / "cut.jsonl"), "--out", str(tmp_path / "run.png")]) == 0
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_a_step_told_twice_is_drawn_as_last_told():
    entries = [{"step": 2, "loss": 5.0}, {"step": 1, "loss": 4.0}, {"step": 2, "loss": 3.0}, {"step": 3}]
    assert plots.series(entries, "loss") == ([1, 2], [4.0, 3.0])


@pytest.mark.parametrize(
    ("content", "out", "wanted"),
    [
        (None, "x.png", r"metrics: given .* \(No such file or directory\); allowed .*; fix: "),
        ("nonsense\n{}\n", "x.png", r"metrics: given .* line 1, which is no JSON; allowed .*; fix: "),
        ('{"kind": "started"}\n', "x.png", r"metrics: given .* \(no step in it\); allowed .*; fix: "),
        ('{"kind": "step", "step": 1}\n', "no/x.png", r"--out: given .*no/x.png .*; allowed .*; fix"),
    ],
)  # fmt: skip
def test_pictures_of_what_is_no_run(tmp_path, capsys, content, out, wanted):
    file = tmp_path / "metrics.jsonl"
    if content is not None:
        file.write_text(content)
    assert plots.main([str(file), "--out", str(tmp_path / out)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(wanted, line)


def test_the_platform_s_evaluation_job_scores_one_checkpoint_in_s3(run, place, tmp_path):
    """Its arguments as the function fills them in; its disk is the test's."""
    step = name_of(20)
    with s3_server("job") as (url, _):
        for source, prefix in ((run.folder / "checkpoints" / step, f"run/{step}"), (place / "val", "val")):
            for path in (p for p in source.rglob("*") if p.is_file()):
                open_store(url).put(path, f"{prefix}/{path.relative_to(source).as_posix()}")
        plan = EvaluationPlan(
            instance_type="ml.m7i.large", zone="use2-az1", at_once=1, max_hours=1, volume_gb=30, data="val"
        )
        own = {
            "{checkpoint}": f"{url}/run/{step}",
            "{out}": f"{url}/run/evaluations/{step}",
            f"data.cache.directory={SCRATCH}": f"data.cache.directory={tmp_path}",
        }
        given = evaluation_arguments(plan, data=url)
        done = subprocess.run(
            [sys.executable, "-m", *(own.pop(argument, argument) for argument in given)],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert not own
        report = json.loads(open_store(url).read(f"run/evaluations/{step}/evaluation.json"))
        assert open_store(url).read(f"run/evaluations/{step}/evaluation.png").startswith(PNG)
    assert (report["step"], report["samples"]) == (20, 53)
    assert (report["checkpoint"], report["data"]) == (f"{url}/run/{step}", f"{url}/val")
