"""`python -m trainer.data synthesize|verify`: write a driving-like data set; check one, shard by shard."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from typing import get_args

import numpy as np

from trainer.cache import Cache, CacheConfig
from trainer.errors import TrainerError
from trainer.mds import BadShardError, Shards
from trainer.samples import COLUMNS, REWARD_COLUMNS, TASKS, Sample
from trainer.synthesize import Scale, Stage, synthesize


def verify(url: str) -> list[str]:
    """Faults of a data set, none when it is whole; prints what was checked."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="trainshed-verify-") as scratch:
        limit = 16 * 2**30
        shards = Shards(
            url, cache=lambda: Cache(CacheConfig(directory=scratch, limit_bytes=limit, run="verify"))
        )
        rating = {name: kind for name, kind in REWARD_COLUMNS.items() if name in shards.columns}
        for name, encoding in {**COLUMNS, **rating}.items():
            if shards.columns.get(name) != encoding:
                faults.append(f"column {name}: given {shards.columns.get(name)}; allowed {encoding}")
        unhashed = [shard.name for shard in shards.shards if not shard.hashes]
        if unhashed:
            faults.append(
                f"{len(unhashed)} shards without a hash in the index: given none; allowed sha1 or xxh64"
            )
        tasks: Counter[str] = Counter()
        first = 0
        for number, shard in enumerate(shards.shards):
            try:
                shards.verify(number)
                if not faults:
                    samples = shards.read(np.arange(first, first + shard.samples))
                    tasks += Counter(Sample.from_columns(one, url).task for one in samples)
            except BadShardError as error:
                faults.append(str(error))
            first += shard.samples
        unknown = sorted(set(tasks) - set(TASKS))
        if unknown:
            faults.append(f"column task: given {unknown}; allowed {list(TASKS)}")
        told = ", ".join(f"{task} {count}" for task, count in sorted(tasks.items()))
        size = sum(shard.size for shard in shards.shards)
        _say(f"{url}: {len(shards)} samples ({told}) in {len(shards.shards)} shards, {size / 2**20:.1f} MiB")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 well, 1 faults found, 2 cannot work."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "verify":
            faults = verify(options.url)
            for fault in faults:
                _say(f"FAULT {fault}")
            _say("ok" if not faults else f"{len(faults)} faults")
            return 1 if faults else 0
        began = time.perf_counter()
        scale = Scale(options.cameras, options.side, options.lidar, options.radar)
        out = options.out if options.split is None else f"{options.out.rstrip('/')}/{options.split}"
        # Held-out sets use other seeds, so that no scene is in both.
        seed = options.seed if options.split in (None, "train") else options.seed + 1_000_003
        synthesize(
            out, options.samples, seed, scale=scale, stage=options.stage,
            compression=options.compression, shard_bytes=options.shard_mib * 2**20,
        )  # fmt: skip
        took = time.perf_counter() - began
        pace = options.samples / took
        _say(f"wrote {options.samples} samples to {out} in {took:.1f} s ({pace:.0f} samples/s)")
    except TrainerError as error:
        _say(f"error: {error}", error=True)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("synthesize", help="write a driving-like multimodal data set")
    write.add_argument("--out", required=True, help="directory or s3://bucket/prefix, empty")
    write.add_argument("--samples", type=int, required=True)
    write.add_argument("--seed", type=int, default=0)
    write.add_argument(
        "--split", choices=("train", "val"), help="written below --out; val has scenes of its own"
    )
    write.add_argument("--cameras", type=int, default=2)
    write.add_argument("--side", type=int, default=64, help="pixels of a square picture")
    write.add_argument("--lidar", type=int, default=128, help="most lidar points")
    write.add_argument("--radar", type=int, default=16, help="most radar returns")
    write.add_argument(
        "--stage", choices=get_args(Stage), default="sft",
        help="sft: driving, questions, detection; cot: well driven, with a chain of thought; rl: to be rated",
    )  # fmt: skip
    write.add_argument("--compression", help="e.g. zstd:3")
    write.add_argument("--shard-mib", type=int, default=16)
    check = commands.add_parser("verify", help="hashes, counts and columns of a data set")
    check.add_argument("url", help="directory or s3://bucket/prefix")
    return parser


def _say(text: str, *, error: bool = False) -> None:
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
