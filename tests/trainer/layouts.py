"""What the parity tests run inside each process: one layout's gradients, whole, beside one process's."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cache
from unittest.mock import patch

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from tests.trainer.factory import pack, sample, tiny
from trainer import parallel
from trainer.losses import combine, counts_of
from trainer.mesh import ParallelConfig, build_mesh
from trainer.optimizer import OptimizerConfig, build_optimizer

# Ragged on purpose: unequal tokens per rank, two pictures, none, no action, no boxes.
SAMPLES: list[dict] = [
    {"seed": 1},
    {"seed": 2, "images": 2, "text": 7},
    {"seed": 3, "images": 0, "action": False, "boxes": 0},
    {"seed": 4, "text": 20},
    {"seed": 5, "text": 9, "boxes": 5},
    {"seed": 6, "action": False},
    {"seed": 7, "images": 2, "text": 16},
    {"seed": 8, "text": 5, "boxes": 0},
]
# A large eps: with the usual one a gradient of rounding noise alone moves a weight by the whole rate.
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-2, clip_norm=1.0)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def plain(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "")


def gradients(model, batches: list, mesh=None) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients, by name, of the mean loss over `batches` (micro-steps) of all data ranks; that loss."""
    totals = [counts_of(batch) for batch in batches]
    counts = {task: sum(total[task] for total in totals) for task in totals[0]}
    for count in counts.values():
        if mesh is not None:
            mesh.sum_over_data(count)
    value = torch.zeros(())
    for index, batch in enumerate(batches):
        parallel.sync_gradients(model, last=index == len(batches) - 1)
        loss = combine(model(batch).losses, counts, model.config.loss_weights, mesh.data_size if mesh else 1)
        loss.backward()
        value += loss.detach() / (mesh.data_size if mesh else 1)
    if mesh is not None:
        mesh.sum_over_data(value)
    got = {plain(name): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: whole(grad).float().clone() for name, grad in got.items()}, float(value)


def stepped(model, max_norm: float) -> tuple[dict[str, torch.Tensor], float, float]:
    """Weights after clipping and one AdamW step; the gradient norm before and after clipping."""
    norm = parallel.gradient_norm(model.parameters())
    parallel.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    after = float(parallel.gradient_norm(model.parameters()))
    build_optimizer(model, OPTIMIZER).step()
    return {plain(name): whole(p.detach()) for name, p in model.named_parameters()}, float(norm), after


def built(layers: int | None, options: dict):
    """The tiny model, with only its first `layers` text blocks when compiling all of them takes too long."""
    options = dict(options)
    tied = options.pop("tied", False)
    model = tiny(**options)
    if tied:
        model.core.lm_head.weight = model.core.get_input_embeddings().weight
    text = model.core.model.language_model
    text.layers = text.layers[:layers]
    return model


def compare(layouts: dict[str, dict]) -> dict[str, dict]:
    """Each layout against one process: largest difference of any gradient element, and what follows from it.

    A layout is fields of ParallelConfig and `micro` (accumulation), `break` (cures to leave out), `model`,
    `layers`, `backend`.
    """
    return {name: _compare(dict(layout)) for name, layout in layouts.items()}


@cache
def _alone(layers: int | None, options: str) -> tuple[dict, float, float, dict]:
    """One process's gradients by name, its loss, their norm, and its weights after a step."""
    model = built(layers, json.loads(options))
    expected, loss = gradients(model, [pack([sample(**s) for s in SAMPLES])])
    norm = float(torch.stack([grad.norm() for grad in expected.values()]).norm())
    return expected, loss, norm, stepped(model, norm / 2)[0]


def _compare(layout: dict) -> dict:
    torch._dynamo.reset()
    micro, broken, options = layout.pop("micro", 1), layout.pop("break", ()), layout.pop("model", {})
    parallel.BACKEND = layout.pop("backend", "aot_eager")
    layers = layout.pop("layers", None)
    expected, loss, norm, weights = _alone(layers, json.dumps(options))
    config = ParallelConfig(**layout)
    mesh = build_mesh(config, dist.get_world_size())
    with ExitStack() as stack:
        for name in broken:
            stack.enter_context(CURES[name]())
        model = parallel.parallelize(built(layers, options), config, mesh)
    share = len(SAMPLES) // mesh.data_size
    mine = [sample(**s) for s in SAMPLES[mesh.data_rank * share : (mesh.data_rank + 1) * share]]
    batches = [pack(mine[i * share // micro : (i + 1) * share // micro], pad=3) for i in range(micro)]
    try:
        actual, value = gradients(model, batches, mesh)
    except (AssertionError, RuntimeError) as error:
        if not broken:
            raise
        return {"raised": f"{type(error).__name__}: {error}"[:300]}
    assert set(actual) == set(expected), set(actual) ^ set(expected)
    errors = {name: float((actual[name] - grad).abs().max()) for name, grad in expected.items()}
    worst = max(errors, key=errors.get)
    moved, measured, after = stepped(model, norm / 2)
    return {
        "worst": worst,
        "error": errors[worst],
        "relative": max(
            float((actual[n] - g).norm() / (g.norm() + 1e-4 * norm)) for n, g in expected.items()
        ),
        "zero": [name for name, grad in expected.items() if grad.any() and not actual[name].any()],
        "loss": abs(value - loss) / loss,
        "norm": abs(measured - norm) / norm,
        "clipped": abs(after - norm / 2) / norm,
        "weights": max(float((moved[name] - weight).abs().max()) for name, weight in weights.items()),
    }


def embeddings(layouts: list[dict]) -> list[dict]:
    return [embedding(dict(layout)) for layout in layouts]


def embedding(layout: dict) -> dict:
    """The embedding's gradient when blocks read its output directly, as in text alone."""
    torch._dynamo.reset()
    broken = layout.pop("break", ())
    parallel.BACKEND = layout.pop("backend", "aot_eager")
    ids = torch.randint(0, 256, (1, 24), generator=torch.Generator().manual_seed(0))

    def gradient(model) -> torch.Tensor:
        hidden = model.core.model.language_model(input_ids=ids, use_cache=False).last_hidden_state
        model.core.lm_head(hidden).float().logsumexp(-1).sum().backward()
        return whole(model.core.get_input_embeddings().weight.grad)

    expected = gradient(built(2, {}))
    config = ParallelConfig(**layout)
    mesh = build_mesh(config, dist.get_world_size())
    with ExitStack() as stack:
        stack.enter_context(patch.object(parallel, "_shard", lambda *_: None))  # its unit is the whole model
        for name in broken:
            stack.enter_context(CURES[name]())
        model = parallel.parallelize(built(2, {}), config, mesh)
    try:
        actual = gradient(model)
    except (AttributeError, RuntimeError) as error:
        if not broken:
            raise
        return {"raised": f"{type(error).__name__}: {error}"}
    return {"norm": float(actual.norm() / expected.norm()), "error": float((actual - expected).abs().max())}


def _without_norm_plan():
    plan = parallel.block_plan
    cut = {"self_attn.q_norm", "self_attn.k_norm"}
    return patch.object(parallel, "block_plan", lambda: {k: v for k, v in plan().items() if k not in cut})


CURES = {
    "clone": lambda: patch.object(parallel, "_own_embedding_output", lambda model: None),
    "norms": _without_norm_plan,
}
