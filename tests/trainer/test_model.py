"""The model: packing is exact, padding is nothing, every parameter learns, heads and losses are right."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.trainer.factory import VOCABULARY, pack, sample, tiny
from trainer.collate import Processor, ProcessorConfig, collate
from trainer.encoders import PillarEncoder, lidar_default, radar_default
from trainer.errors import TrainerError
from trainer.heads import ActionConfig, ActionHead, constant_velocity, decode_boxes, encode_boxes
from trainer.losses import (
    TASKS,
    LossWeights,
    action_loss,
    assign,
    box_loss,
    combine,
    counts_of,
    next_token_labels,
)
from trainer.model import ModelConfig, build_model
from trainer.samples import Sample

ONE = dict.fromkeys(TASKS, torch.ones(()))
WEIGHTS = LossWeights()
SAMPLES = [
    sample(1),
    sample(2, images=2, text=7),
    sample(3, images=0, action=False, boxes=0),
    sample(4, text=20, boxes=5),
]


def gradients(model, batches) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradient of the sum of all batches' losses, and the sums by task."""
    model.zero_grad()
    sums = dict.fromkeys(TASKS, 0.0)
    for batch in batches:
        losses = model(batch).losses
        combine(losses, ONE, WEIGHTS).backward()
        sums = {task: sums[task] + losses[task].item() for task in TASKS}
    return {name: p.grad.clone() for name, p in model.named_parameters()}, sums


def test_packed_batch_is_the_sum_of_its_samples_alone():
    model = tiny()
    packed, packed_sums = gradients(model, [pack(SAMPLES, pad=5)])
    alone, alone_sums = gradients(model, [pack([one]) for one in SAMPLES])
    assert packed_sums == pytest.approx(alone_sums, rel=1e-5)
    for name, gradient in packed.items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-4, atol=1e-5, msg=name)
        assert gradient.any(), f"{name} has no gradient"


def test_a_cache_would_let_packed_samples_see_each_other(monkeypatch):
    """transformers drops the packing mask when a cache is in use, which its default is."""
    model = tiny()
    exact = model(pack(SAMPLES)).losses["text"].item()
    language = model.core.model.language_model
    forward = language.forward
    monkeypatch.setattr(language, "forward", lambda **given: forward(**{**given, "use_cache": True}))
    assert abs(model(pack(SAMPLES)).losses["text"].item() - exact) > 1e-3


def test_outputs_follow_their_sample_whatever_the_order():
    model = tiny().eval()
    with torch.no_grad():
        one, other = model(pack(SAMPLES)), model(pack(SAMPLES[::-1], pad=7))
    torch.testing.assert_close(one.trajectory, other.trajectory.flip(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.boxes, other.boxes.flip(0), rtol=1e-3, atol=1e-4)


def test_deterministic_and_equal_for_equal_seeds():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = tiny(5), tiny(5), tiny(6)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    batch = pack(SAMPLES)
    assert torch.equal(one(batch).loss, two(batch).loss)
    assert not torch.equal(one(batch).loss, other(batch).loss)


def test_every_parameter_takes_part_without_pictures_labels_or_boxes():
    """A rank whose batch lacks a modality still meets the others in every collective."""
    model = tiny()
    bare = sample(9, images=0, action=False, boxes=0)
    bare["labels"][:] = -100
    output = model(pack([bare]))
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert {task: int(count) for task, count in output.counts.items()} == dict.fromkeys(TASKS, 0)
    assert output.loss.item() == 0


def test_all_logits_hold_the_labelled_ones():
    model, batch = tiny().eval(), pack(SAMPLES)
    whole, labelled = model(batch, all_logits=True), model(batch)
    assert whole.logits.shape == (1, batch.input_ids.shape[1], VOCABULARY.vocab_size)
    places = next_token_labels(batch.labels, batch.segment) != -100
    torch.testing.assert_close(whole.logits[places], labelled.logits)
    assert torch.allclose(whole.loss, labelled.loss)


def test_wrong_number_of_image_tokens_is_told():
    batch = pack([sample(1, images=2)])
    with pytest.raises(TrainerError, match="8 image tokens for 4 image features"):
        tiny()(replace(batch, pixel_values=batch.pixel_values[:16], image_grid_thw=batch.image_grid_thw[:1]))


def test_reads_what_the_processor_makes():
    processor = Processor(ProcessorConfig())
    model = build_model(ModelConfig(), processor)
    random = np.random.default_rng(0)

    def made(number: int, future: float) -> Sample:
        return Sample(
            images=random.integers(0, 255, (2, 64, 64, 3), dtype=np.uint8),
            lidar=random.normal(size=(50, 4)).astype(np.float32) * 9,
            radar=random.normal(size=(6, 5)).astype(np.float32) * 9,
            prompt="Which way?",
            answer="Straight on.",
            trajectory=np.full((8, 3), future, np.float32),
            history=random.normal(size=(4, 3)).astype(np.float32),
            boxes=np.array([[5, 1, 0, 4, 2, 1.5, 0.1, 1]], np.float32),
            task="drive",
            id=str(number),
        )

    batch = collate([made(0, 1.0), made(1, float("nan"))], processor)
    output = model(batch)
    output.loss.backward()
    assert output.loss.isfinite()
    assert {task: int(count) for task, count in output.counts.items()} == {
        "text": 26,
        "action": 1,
        "boxes": 2,
    }
    assert output.trajectory.shape == (2, 8, 3)
    assert output.boxes.shape == (2, 16, 9)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_learns():
    model, batch = tiny(), pack(SAMPLES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = model(batch).loss.item()
    for _ in range(12):
        optimizer.zero_grad()
        model(batch).loss.backward()
        optimizer.step()
    assert model(batch).loss.item() < 0.5 * first


def test_base_directory_round_trip(tmp_path):
    made = tiny(3)
    made.core.save_pretrained(tmp_path)
    loaded = build_model(ModelConfig(base=str(tmp_path)), VOCABULARY, seed=3)
    batch = pack(SAMPLES)
    assert torch.equal(made(batch).losses["text"], loaded(batch).losses["text"])
    assert next(loaded.parameters()).dtype == torch.float32
    bigger = type(VOCABULARY)(**{**vars(VOCABULARY), "vocab_size": 999})
    with pytest.raises(TrainerError, match="272 embeddings for 999 tokens"):
        build_model(ModelConfig(base=str(tmp_path)), bigger)


def test_base_that_is_not_there():
    with pytest.raises(TrainerError, match=r"model\.base: given \./nowhere"):
        build_model(ModelConfig(base="./nowhere"), VOCABULARY)
    with pytest.raises(ValidationError, match="no size of"):
        ModelConfig(base="9b")


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (("vision",), "core.model.visual."),
        (("text",), "core.model.language_model."),
        (("encoders",), "encoders."),
        (("heads.boxes.*",), "heads.boxes."),
    ],
)
def test_freeze(patterns, frozen):
    model = tiny(freeze=patterns)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        name for name, _ in model.named_parameters() if name.startswith(frozen)
    }
    model(pack(SAMPLES)).loss.backward()
    assert all((p.grad is None) == name.startswith(frozen) for name, p in model.named_parameters())


def test_freeze_of_nothing_is_told():
    with pytest.raises(TrainerError, match=r"model\.freeze: given visoin"):
        tiny(freeze=("visoin",))


def test_lora_trains_adapters_encoders_and_heads_only():
    model = tiny(lora={"rank": 2, "alpha": 4})
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        n for n, _ in model.named_parameters() if "lora_" in n or n.startswith(("encoders", "heads"))
    }
    assert sum("lora_A" in name for name in trained) == 4 * 7
    batch = pack(SAMPLES)
    torch.testing.assert_close(model(batch).losses["text"], tiny()(batch).losses["text"])  # B starts at zero


@pytest.mark.parametrize("config", [lidar_default(), radar_default()], ids=["lidar", "radar"])
def test_padding_order_and_far_points_do_not_change_an_encoder(config):
    torch.manual_seed(0)
    encoder, width = PillarEncoder(config, 32), len(config.scale)
    points = torch.randn(2, 12, width) * 20
    mask = torch.ones(2, 12, dtype=torch.bool)
    expected = encoder(points, mask)
    assert expected.shape == (2, config.tokens, 32)
    assert not torch.allclose(expected[0], expected[1])
    junk = torch.full((2, 5, width), float("nan"))
    more, more_mask = torch.cat([points, junk], 1), torch.cat([mask, torch.zeros(2, 5, dtype=torch.bool)], 1)
    assert torch.equal(encoder(more, more_mask), expected)
    order = torch.randperm(17)
    torch.testing.assert_close(encoder(more[:, order], more_mask[:, order]), expected)
    far = torch.cat([points, torch.full((2, 1, width), 1e6)], 1)
    assert torch.equal(encoder(far, torch.ones(2, 13, dtype=torch.bool)), expected)
    encoder(more, more_mask).sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
    assert encoder(points, torch.zeros_like(mask)).isfinite().all()


@pytest.mark.parametrize("config", [lidar_default(), radar_default()], ids=["lidar", "radar"])
def test_four_points_are_heard_among_hundreds_of_empty_pillars(config):
    torch.manual_seed(0)
    encoder, ahead = PillarEncoder(config, 32), torch.zeros(1, 4, len(config.scale))
    ahead[..., 0] = 20
    mask = torch.ones(1, 4, dtype=torch.bool)
    tokens, other = encoder(ahead, mask), encoder(-ahead, mask)
    assert (tokens - other).norm() > 0.2 * tokens.norm()


def test_constant_velocity_and_controls():
    history = torch.tensor([[[-2.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    straight = torch.tensor([[[1.0, 0, 0], [2.0, 0, 0], [3.0, 0, 0]]])
    assert torch.equal(constant_velocity(history, 3), straight)
    head = ActionHead(ActionConfig(steps=3, history=3, dt=1.0, output="controls"), 8)
    torch.nn.init.zeros_(head.out.weight)
    torch.nn.init.zeros_(head.out.bias)
    torch.testing.assert_close(head(torch.randn(1, 8), history), straight)
    head.out.bias.data[1::2] = 0.1  # turning left
    turned = head(torch.randn(1, 8), history)
    assert turned[0, -1, 1] > 0
    assert turned[0, -1, 2].item() == pytest.approx(0.3)
    head(torch.randn(1, 8), history * 0).sum().backward()  # standing still
    assert head.out.weight.grad.isfinite().all()


def test_action_loss_ignores_the_whole_turn_and_unlabelled_samples():
    target = torch.randn(2, 4, 3)
    same = target + torch.tensor([0, 0, 2 * torch.pi])
    mask = torch.tensor([True, True])
    assert action_loss(same, target, mask) == pytest.approx(0, abs=1e-5)
    target[1] = float("nan")
    prediction = torch.zeros(2, 4, 3, requires_grad=True)
    action_loss(prediction, target, torch.tensor([True, False])).backward()
    assert prediction.grad.isfinite().all()
    assert not prediction.grad[1].any()


@pytest.mark.parametrize("seed", range(6))
def test_assignment_is_the_best_there_is(seed):
    random = np.random.default_rng(seed)
    rows, columns = random.integers(1, 5), 6
    cost = random.normal(size=(rows, columns)).round(1)  # ties happen
    chosen = assign(cost)
    best = min(cost[range(rows), list(p)].sum() for p in itertools.permutations(range(columns), int(rows)))
    assert len(set(chosen)) == rows
    assert cost[range(rows), chosen].sum() == pytest.approx(best)


def test_box_code_round_trip_and_perfect_boxes_cost_nothing():
    boxes = torch.tensor([[[10.0, -3, 0.5, 4, 2, 1.5, 3.0, 1], [-20, 5, 1, 8, 3, 3, -2.0, 2]]])
    coded = encode_boxes(boxes, 64.0)
    scores = torch.nn.functional.one_hot(boxes[..., 7].long(), 5) * 30.0
    decoded = decode_boxes(scores, coded, 64.0)
    torch.testing.assert_close(decoded[..., :8], boxes, rtol=1e-4, atol=1e-4)
    mask = torch.ones(1, 2, dtype=torch.bool)
    # A third query says "nothing"; the queries' order is free.
    empty = torch.nn.functional.one_hot(torch.tensor([[4]]), 5) * 30.0
    scores, coded = torch.cat([empty, scores.flip(1)], 1), torch.cat([torch.randn(1, 1, 8), coded.flip(1)], 1)
    assert box_loss(scores, coded, boxes, mask, 64.0) == pytest.approx(0, abs=1e-4)
    assert box_loss(scores.flip(1), coded, boxes, mask, 64.0) > 1


def test_more_boxes_than_queries_keeps_the_nearest():
    boxes = torch.zeros(1, 3, 8)
    boxes[0, :, 0], boxes[..., 3:6] = torch.tensor([30.0, 10.0, 20.0]), 1.0
    scores, coded = torch.zeros(1, 2, 5), encode_boxes(boxes[:, 1:], 64.0)
    far = encode_boxes(boxes[:, :2], 64.0)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert box_loss(scores, coded, boxes, mask, 64.0) < box_loss(scores, far, boxes, mask, 64.0)


def test_box_of_an_unknown_class_is_told():
    boxes = torch.ones(1, 1, 8) * 7
    with pytest.raises(TrainerError, match="class 7"):
        box_loss(torch.zeros(1, 2, 5), torch.zeros(1, 2, 8), boxes, torch.ones(1, 1, dtype=torch.bool), 64.0)


def test_labels_never_cross_samples_and_counts_need_no_forward():
    labels, segment = torch.tensor([[1, 2, 3, 4, 9]]), torch.tensor([[0, 0, 1, 1, -1]])
    assert next_token_labels(labels, segment).tolist() == [[2, -100, 4, -100, -100]]
    batch = pack(SAMPLES)
    assert {k: int(v) for k, v in counts_of(batch).items()} == {
        k: int(v) for k, v in tiny()(batch).counts.items()
    }
