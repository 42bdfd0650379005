"""From the synthetic world to a packed batch: it can be learned, and equals what Qwen3-VL expects."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2VLImageProcessor, Qwen2VLImageProcessorFast, Qwen3VLConfig, Qwen3VLModel
from transformers.masking_utils import find_packed_sequence_indices

from tests.trainer.buckets import s3_server
from trainer.collate import NO_LABEL, Processor, ProcessorConfig, collate
from trainer.controls import read
from trainer.data import main
from trainer.errors import TrainerError
from trainer.rewards import RewardConfig, Surroundings, rate
from trainer.samples import COLUMNS, Sample
from trainer.synthesize import Scale, generate
from trainer.tokenizer import ByteTokenizer
from trainer.world import simulate


@pytest.fixture(scope="module")
def samples():
    return [Sample.from_columns(one) for one in generate(24, 5)]


@pytest.fixture(scope="module")
def processor():
    return Processor(ProcessorConfig())


# ------------------------------------------------------------------------------------------ world


def test_future_is_learnable_from_what_the_sensors_see():
    """Constant velocity < a fit on history < a fit that also knows lane and lead, on held-out scenes."""
    scenes = simulate(1200, np.random.default_rng(0))
    history, future = scenes.history, scenes.trajectory[..., :2]
    steps = np.arange(1, 9)[None, :, None]
    constant = history[:, -1:, :2] + (history[:, -1:, :2] - history[:, -2:-1, :2]) * steps

    def fit(features):
        features = np.c_[features, np.ones(len(features))]
        weights = np.linalg.lstsq(features[:800], future[:800].reshape(800, -1), rcond=None)[0]
        return (features @ weights).reshape(future.shape)

    def ade(guess):
        return float(np.linalg.norm(guess - future, axis=-1)[800:].mean())

    past = history.reshape(1200, -1)
    lead = np.where(
        scenes.present[:, :1], np.c_[scenes.actors[:, 0, :2], scenes.velocity[:, 0]], [80, 0, 15, 0]
    )
    lane = scenes.lane[:, 70:140:10].reshape(1200, -1)
    errors = [ade(constant), ade(fit(past)), ade(fit(np.c_[past, lane, lead, scenes.braking]))]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.2 * errors[2], errors


def test_world_is_finite_and_reproducible():
    one, two = (list(generate(20, 9)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        for name in COLUMNS:
            assert np.array_equal(
                a[name], b[name], equal_nan=isinstance(a[name], np.ndarray) and a[name].dtype.kind == "f"
            )
    assert [s["id"] for s in generate(5, 9)] == [s["id"] for s in one[:5]]
    for sample in one:
        assert sample["images"].shape == (2, 64, 64, 3)
        assert 0 < len(sample["lidar"]) <= 128
        assert 0 < len(sample["radar"]) <= 16
        assert np.isfinite(sample["lidar"]).all()
        assert np.isfinite(sample["radar"]).all()
        assert np.isfinite(sample["trajectory"]).all() == (sample["task"] != "vqa")
        assert np.abs(sample["history"][-1]).max() < 1e-5
        assert len(sample["boxes"]) > 0
        assert all(
            sample[name].dtype.name == COLUMNS[name].split(":")[1] for name in COLUMNS if ":" in COLUMNS[name]
        )


def test_no_sample_trains_an_action_on_an_answer_that_tells_it():
    for stage in ("sft", "cot", "rl"):
        for one in generate(60, 1, stage=stage):
            assert one["task"] != "drive" or not one["answer"] or not np.isfinite(one["trajectory"]).any()


def test_chain_of_thought_says_what_is_there_and_how_the_driver_went_on():
    plain = {one["id"]: one for one in generate(256, 1, stage="rl")}
    seen = set()
    told = list(generate(100, 1, stage="cot"))
    assert [one["id"] for one in generate(60, 1, stage="cot")] == [one["id"] for one in told[:60]]
    for one in told:
        scene = plain[one["id"]]
        assert one["prompt"] == scene["prompt"]
        speed = np.linalg.norm(scene["history"][-1, :2] - scene["history"][-2, :2]) / 0.5
        assert one["prompt"].startswith(f"Speed {speed:.1f} m/s, ")
        thought, _, words = one["answer"].rpartition(" = ")
        lead, road, pace = thought.split(", ")
        if lead != "no lead":
            assert float(lead.split()[1]) == round(float(scene["boxes"][0, 0]))
        at = np.abs(scene["lane"][:, 0] - 40).argmin()
        assert (scene["lane"][at, 2] > 0.15) == (road == "road left")
        driven, readable = read([one["answer"]], torch.from_numpy(scene["history"][None]), 8)
        assert readable.all()
        assert len(words.split()) == 4
        off = driven[0, :, :2].numpy() - scene["trajectory"][:, :2]
        assert np.linalg.norm(off, axis=1).mean() < 0.5
        # The recorded end speed against the present one, by the poses.
        end = np.linalg.norm(scene["trajectory"][-1, :2] - scene["trajectory"][-2, :2]) / 0.5
        assert {"slow down": end < speed, "speed up": end > speed}.get(pace, abs(end - speed) < 2.5)
        seen |= {"brakes" if "brakes" in lead else "lead" if "lead " in lead else "none", road, pace}
    assert {"brakes", "road left", "road right", "road straight", "slow down", "keep speed"} <= seen


def test_only_well_driven_scenes_get_a_chain_of_thought():
    everything = list(generate(256, 1, stage="rl"))
    samples = [Sample.from_columns(one) for one in everything]
    around = Surroundings.of(samples)
    total = rate(RewardConfig(), around.recorded, around)["total"]
    count = int((total >= 1.65).sum())
    assert 0 < count < 256
    told = [one["id"] for one in generate(count, 1, stage="cot")]
    assert told == [one["id"] for one, value in zip(everything, total, strict=True) if value >= 1.65]


def test_reinforcement_learning_sets_carry_what_rates_a_drive():
    for one in generate(20, 3, stage="rl"):
        sample = Sample.from_columns(one)
        assert sample.answer == ""
        assert sample.task == "drive"
        assert sample.tracks.shape == (len(sample.boxes), 8, 3)
        origin = np.abs(sample.lane[:, :2]).sum(1).min()
        assert origin < 2.5  # the lane passes by the ego
    assert Sample.from_columns(next(iter(generate(1, 3)))).lane is None


def test_tracks_follow_the_road_from_where_the_boxes_are():
    scenes = simulate(400, np.random.default_rng(3))
    first, now = scenes.tracks[:, :, 0, :2], scenes.actors[..., :2]
    # Places lie on a grid of a metre along the lane: half a second makes v / 2, give or take one.
    far = np.abs(first - now - scenes.velocity / 2).max(-1)
    assert far[scenes.present].max() < 2
    ahead = scenes.tracks[:, 0, :, 0]
    slowing = scenes.braking & scenes.present[:, 0] & (np.abs(scenes.lane[:, 120, 2]) < 0.05)
    assert slowing.any()
    made = np.diff(ahead[slowing], axis=1)
    assert (made[:, -1] <= made[:, 0]).all()  # some stand already
    assert made[:, -1].mean() < made[:, 0].mean() / 2


# ------------------------------------------------------------------------------------------ command line


def test_synthesize_and_verify_a_directory(tmp_path, capsys):
    args = [
        "synthesize",
        "--out",
        str(tmp_path / "d"),
        "--samples",
        "40",
        "--split",
        "val",
        "--shard-mib",
        "1",
    ]
    assert main(args) == 0
    assert main(["verify", str(tmp_path / "d/val")]) == 0
    out = capsys.readouterr().out
    assert "40 samples (" in out
    assert out.endswith("ok\n")
    assert main(args) == 2
    assert "holds a data set" in capsys.readouterr().err
    shard = tmp_path / "d/val/shard.00000.mds"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(tmp_path / "d/val")]) == 1
    assert "FAULT shard" in capsys.readouterr().out


def test_synthesize_to_s3(capsys):
    with s3_server("data-test") as (url, _):
        assert main(["synthesize", "--out", f"{url}/set", "--samples", "20", "--compression", "zstd:1"]) == 0
        assert main(["verify", f"{url}/set"]) == 0
        assert main(["verify", f"{url}/nothing"]) == 2
    assert "s3://data-test/nothing/index.json (NoSuchKey)" in capsys.readouterr().err


def test_each_stage_can_be_written_and_verified(tmp_path, capsys):
    for stage in ("cot", "rl"):
        out = str(tmp_path / stage)
        assert main(["synthesize", "--out", out, "--samples", "12", "--stage", stage]) == 0
        assert main(["verify", out]) == 0
    assert capsys.readouterr().out.count("12 samples (drive 12)") == 2
    with pytest.raises(SystemExit):
        main(["synthesize", "--out", str(tmp_path / "x"), "--samples", "1", "--stage", "dagger"])
    assert "choose from" in capsys.readouterr().err


def test_bad_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["verify"])
    assert "url" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ collate


@pytest.mark.parametrize("kind", [Qwen2VLImageProcessor, Qwen2VLImageProcessorFast])
@pytest.mark.parametrize(("side", "patch"), [(64, 16), (48, 8), (56, 14)])
def test_patches_equal_transformers(kind, side, patch):
    config = ProcessorConfig(patch_size=patch)
    images = np.random.default_rng(0).integers(0, 256, (3, side, 2 * side, 3), np.uint8)
    theirs = kind(
        do_resize=False, patch_size=patch, merge_size=2, temporal_patch_size=2,
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )(images=list(images), return_tensors="pt")  # fmt: skip
    ours = Processor(config)
    assert torch.allclose(torch.from_numpy(ours.patches(images)), theirs["pixel_values"], atol=1e-6, rtol=0)
    assert [list(ours.grid(*images.shape[1:3]))] * 3 == theirs["image_grid_thw"].tolist()


def _rope_index(processor, ids, grids):
    """transformers' own rule, on a model without weights."""
    config = Qwen3VLConfig(
        image_token_id=processor.image_id,
        vision_start_token_id=processor.tokenizer.vision_start_id,
        vision_config={"spatial_merge_size": processor.config.merge_size},
    )
    model = Qwen3VLModel.__new__(Qwen3VLModel)
    torch.nn.Module.__init__(model)
    model.config = config
    return Qwen3VLModel.get_rope_index(model, torch.tensor([ids]), torch.tensor(grids))[0][:, 0]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 4), columns=st.integers(1, 5), cameras=st.integers(1, 3), prompt=st.text(max_size=12),
    answer=st.text(max_size=8), lidar=st.integers(0, 5),
)  # fmt: skip
def test_positions_equal_transformers(rows, columns, cameras, prompt, answer, lidar):
    processor = Processor(ProcessorConfig(patch_size=8, lidar_tokens=lidar))
    base = next(iter(generate(1, 0, scale=Scale(1, 16))))
    images = np.zeros((cameras, 16 * rows, 16 * columns, 3), np.uint8)
    sample = Sample.from_columns({**base, "images": images, "prompt": prompt, "answer": answer})
    ids, _ = processor.tokens(sample)
    grids = [processor.grid(16 * rows, 16 * columns)] * cameras
    ours = processor.positions(np.array(ids), grids)
    assert ours[0].tolist() == list(range(len(ids)))
    assert (ours[1:] == _rope_index(processor, ids, grids).numpy()).all()


def test_packed_batch(samples, processor):
    batch = collate(samples[:5], processor)
    assert batch.input_ids.shape[1] % processor.config.pack_to == 0
    assert batch.sizes == 5
    assert batch.sample_ids == tuple(s.id for s in samples[:5])
    row, segment = batch.input_ids[0], batch.segment[0]
    for number, sample in enumerate(samples[:5]):
        own = segment == number
        ids, labels = processor.tokens(sample)
        assert row[own].tolist() == ids
        assert batch.labels[0][own].tolist() == labels
        grids = [processor.grid(64, 64)] * 2
        assert (batch.position_ids[:, 0, own].numpy() == processor.positions(np.array(ids), grids)).all()
        assert (row[own] == processor.action_id).sum() == 1
        assert int(row[own][-1]) == processor.action_id
        assert [x for x in labels if x != NO_LABEL] == [*sample.answer.encode(), processor.eos_id]
    # As many placeholders as encoders give: patches / merge² per camera, fixed numbers for points.
    assert int((row == processor.image_id).sum()) == len(batch.pixel_values) // 4
    assert int((row == processor.lidar_id).sum()) == 5 * 8
    assert int((row == processor.radar_id).sum()) == 5 * 4
    assert (batch.labels[0][segment < 0] == NO_LABEL).all()
    # transformers sees the samples apart, and the padding apart from the last.
    seen = find_packed_sequence_indices(batch.position_ids[0])[0]
    assert [len(set(seen[segment == n].tolist())) for n in range(5)] == [1] * 5
    assert len(set(seen.tolist())) == 5 + int((segment < 0).any())


def test_masks_and_padding(samples, processor):
    batch = collate(samples, processor)
    for number, sample in enumerate(samples):
        assert int(batch.lidar_mask[number].sum()) == min(len(sample.lidar), 128)
        assert int(batch.radar_mask[number].sum()) == len(sample.radar)
        assert int(batch.boxes_mask[number].sum()) == int((sample.boxes[:, 7] >= 0).sum())
        assert bool(batch.trajectory_mask[number]) == (sample.task != "vqa")
    assert torch.isfinite(batch.trajectory).all()
    assert batch.to("cpu").input_ids.equal(batch.input_ids)
    assert batch.tokens == int((batch.segment >= 0).sum())
    asked = collate(samples[:2], processor, answers=False)
    assert (asked.labels == NO_LABEL).all()


def test_many_points_are_thinned_and_boxes_nearest(samples):
    processor = Processor(ProcessorConfig(max_lidar=10, max_radar=2, max_boxes=1))
    batch = collate(samples[:3], processor)
    assert batch.lidar.shape == (3, 10, 4)
    for number, sample in enumerate(samples[:3]):
        real = sample.boxes[sample.boxes[:, 7] >= 0]
        if len(real):
            nearest = real[np.hypot(real[:, 0], real[:, 1]).argmin()]
            assert np.allclose(batch.boxes[number, 0], nearest)


def test_collate_errors(samples, processor):
    odd = Sample(**{**vars(samples[0]), "images": np.zeros((1, 60, 64, 3), np.uint8)})
    with pytest.raises(TrainerError, match="60x64 pixels; allowed multiples of patch_size"):
        collate([odd], processor)
    short = Sample(**{**vars(samples[0]), "history": samples[0].history[:2]})
    with pytest.raises(TrainerError, match=r"data\.history"):
        collate([samples[0], short], processor)
    with pytest.raises(TrainerError, match="max_tokens"):
        collate(samples[:1], Processor(ProcessorConfig(max_tokens=10)))
    with pytest.raises(TrainerError, match="a column 'lidar'"):
        Sample.from_columns({name: 0 for name in COLUMNS if name != "lidar"})
    with pytest.raises(TrainerError, match="'bytes' or a directory"):
        Processor(ProcessorConfig(tokenizer="/nowhere"))


@given(st.text())
def test_byte_tokenizer_round_trip(text):
    words = ByteTokenizer()
    assert words.decode([words.bos_id, *words.encode(text), words.eos_id]) == text
    assert max(words.encode(text), default=0) < words.pad_id < words.vocab_size
