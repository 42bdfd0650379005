"""Reading what MDSWriter wrote: byte-equal with StreamingDataset, and every fault found and named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streaming import MDSWriter, StreamingDataset

from trainer.cache import Cache, CacheConfig
from trainer.errors import TrainerError
from trainer.mds import BadShardError, Shards

COLUMNS = {
    "a": "int", "s": "str", "x": "ndarray:float32", "y": "ndarray:int16:3,2", "z": "ndarray", "j": "json",
    "f": "float32", "b": "bytes", "p": "png", "q": "jpeg", "u": "uint8", "si": "str_int", "sf": "str_float",
}  # fmt: skip


def write(path: Path, n=300, **more):
    rng = np.random.default_rng(0)
    with MDSWriter(
        out=str(path), columns=COLUMNS, hashes=["sha1", "xxh64"], size_limit=40_000, **more
    ) as writer:
        for i in range(n):
            image = Image.fromarray(rng.integers(0, 255, (5, 4, 3), np.uint8))
            writer.write({
                "a": i, "s": "é" * (i % 7), "x": rng.random((1 + i % 5, 3), np.float32),
                "y": np.arange(6, dtype=np.int16).reshape(3, 2) + i, "z": rng.random((1, 2, i % 3 + 1)),
                "j": {"k": [i]}, "f": i * 0.5, "b": bytes([i % 256]), "p": image, "q": image, "u": i % 256,
                "si": i, "sf": i / 3,
            })  # fmt: skip
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw")), write(tmp_path_factory.mktemp("zip"), compression="zstd:3")


@pytest.fixture
def cache(tmp_path):
    return lambda: Cache(CacheConfig(directory=str(tmp_path / "cache"), limit_bytes=10**7, run="t"))


def same(ours, theirs):
    if isinstance(ours, np.ndarray):
        return (
            ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
        )
    if isinstance(ours, Image.Image):
        return ours.tobytes() == theirs.tobytes()
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("kind", [0, 1])
def test_equal_to_streaming(made, cache, kind):
    theirs = StreamingDataset(local=str(made[kind]), batch_size=1)
    ours = Shards(str(made[kind]), cache=cache)
    assert len(ours) == len(theirs) == 300
    assert len(ours.shards) > 3
    order = np.random.default_rng(1).permutation(300)
    for index, sample in zip(order, ours.read(order), strict=True):
        expected = theirs[int(index)]
        assert sample.keys() == expected.keys()
        assert all(same(sample[name], expected[name]) for name in expected), index


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 4
    if how == "truncate":
        data = data[: len(data) // 2]
    path.unlink() if how == "missing" else path.write_bytes(data)


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
@pytest.mark.parametrize("kind", [0, 1])
def test_damage_is_one_clear_error(made, cache, tmp_path, how, kind):
    copy = Path(shutil.copytree(made[kind], tmp_path / "copy"))
    suffix = ".zstd" if kind else ""
    damage(copy / f"shard.00001.mds{suffix}", how)
    shards = Shards(str(copy), cache=cache)
    shards.read(np.array([0]))
    with pytest.raises(BadShardError) as caught:
        shards.read(np.array([int(shards.sizes[0])]))
    message = str(caught.value)
    assert "\n" not in message
    assert f"{copy}/shard.00001.mds{suffix}" in message
    assert {"flip": "xxh64 ", "truncate": " bytes", "missing": "no such file"}[how] in message
    assert "data.on_bad_shard=quarantine" in message


def test_cached_damage_is_healed_from_the_store(made, cache):
    """A bit flipped on NVMe after the download: streaming would serve it; here the shard is fetched again."""
    expected = Shards(str(made[1]), cache=cache).read(np.array([0]))[0]
    root = cache().root
    victim = next(root.glob("*shard.00000.mds"))
    damage(victim, "flip")
    again = Shards(str(made[1]), cache=cache).read(np.array([0]))[0]
    assert again["x"].tobytes() == expected["x"].tobytes()


def test_index_errors(tmp_path, made):
    with pytest.raises(TrainerError, match="no such file"):
        Shards(str(tmp_path / "nothing"))
    copy = Path(shutil.copytree(made[0], tmp_path / "copy"))
    (copy / "index.json").write_text("{")
    with pytest.raises(TrainerError, match=r"index\.json: given JSONDecodeError"):
        Shards(str(copy))
    (copy / "index.json").write_text(json.dumps({"version": 2, "shards": []}))
    with pytest.raises(TrainerError, match="at least one sample"):
        Shards(str(copy))


def test_pickle_is_refused(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"a": "pkl"}) as writer:
        writer.write({"a": 1})
    with pytest.raises(TrainerError, match="column encoding: given pkl"):
        Shards(str(tmp_path))


def test_needs_a_cache_when_compressed(made):
    with pytest.raises(TrainerError, match=r"data\.cache"):
        Shards(str(made[1]))
