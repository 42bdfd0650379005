"""Batches that cross a process boundary in one piece."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.trainer.factory import pack, sample
from trainer.samples import Batch
from trainer.transport import Piece

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES, st.booleans()), max_size=6))
def test_tensors_come_out_as_they_went_in(given_):
    """Of any type and shape, empty ones and scalars, also those that do not lie in one row."""
    tensors = {}
    for number, (dtype, shape, turned) in enumerate(given_):
        tensor = torch.randint(0, 2, shape).to(dtype) if number % 2 else torch.rand(shape).mul(9).to(dtype)
        tensors[str(number)] = tensor.transpose(0, -1) if turned and len(shape) > 1 else tensor
    found = pickle.loads(pickle.dumps(Piece(tensors)))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


class _Batches(torch.utils.data.Dataset):
    def __getitem__(self, number):
        return pack([sample(seed=number), sample(seed=number + 9, boxes=0, images=0)])

    def __len__(self):
        return 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_from_a_worker_is_the_batch_that_was_made(workers):
    loader = DataLoader(
        _Batches(), batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    for number, batch in enumerate(loader):
        assert isinstance(batch, Batch)
        made = vars(_Batches()[number])
        assert vars(batch).keys() == made.keys()
        tensors = {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}
        assert len(tensors) == 15
        for name, value in made.items():
            got = getattr(batch, name)
            if name in tensors:  # what a sample lacks is NaN
                torch.testing.assert_close(got, value, rtol=0, atol=0, equal_nan=True)
            else:
                assert got == value, name
        files = {getattr(batch, name).untyped_storage().data_ptr() for name in tensors}
        assert len(files) == 1 or not workers, "one piece of shared memory"
