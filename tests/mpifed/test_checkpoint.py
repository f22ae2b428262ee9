"""Checkpoint files: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from commands import STORED, TINY, call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mpifed
from mpifed import state
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint import integrity as seal
from mpifed.checkpoint.files import parts
from mpifed.checkpoint.integrity import Damaged
from mpifed.config.experiments import parse_overrides
from mpifed.errors import RunError
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone, world

# One place for all examples of a test: the file there is always written anew.
EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Inner:
    velocity: Tensor = state.client()
    steps: Tensor = state.client()


@dataclass(frozen=True)
class State:
    model: Tensor = state.shared()
    mixture: Tensor = state.client()
    scale: Tensor = state.server()
    inner: Inner = state.client()


DTYPES = st.sampled_from([np.float32, np.float64, np.int64])
NUMBERS = st.integers(1, 7)
AXES = st.lists(st.integers(0, 4), max_size=2).map(tuple)


def tensor_of(generator: np.random.Generator, shape, dtype) -> Tensor:
    # Any bits: a checkpoint must not mind what a number is.
    raw = generator.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    made = torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name))
    made.numpy()[...] = np.frombuffer(raw, dtype).reshape(shape)
    return made


@st.composite
def states(draw):
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, rows_shared = draw(NUMBERS), draw(st.booleans())

    def rows():
        return tensor_of(generator, (n, *draw(AXES)), draw(DTYPES))

    shared = (n, *draw(AXES)) if rows_shared else draw(AXES)
    made = State(
        tensor_of(generator, shared, draw(DTYPES)),
        rows(),
        tensor_of(generator, draw(AXES), draw(DTYPES)),
        Inner(rows(), rows()),
    )
    return made, n, rows_shared


def meta(round=3, **changes) -> checkpoint.Meta:
    made = checkpoint.Meta(
        round=round,
        seed=2**63 - 1,
        horizon=9,
        configuration={**STORED, "experiment": "ünï", "x": [1, None, 0.1]},
        metrics="round,state_digest\n0,aß\n2,\n",
        ledger={"up_bits": 2**70, "down_bits": 0},
        seconds={"total": 0.1 + 0.2},
    )
    return dataclasses.replace(made, **changes)


def alone(n_clients: int) -> Federation:
    clients = np.arange(n_clients)
    return Federation(Alone(), 0 * clients, clients < 0, clients + 1)


def of(n_clients: int, about: checkpoint.Meta) -> checkpoint.Meta:
    """``about`` of a run with as many clients."""
    mapping = {**about.configuration, "clients": n_clients}
    return dataclasses.replace(about, configuration=mapping)


def write(path, about, value, shared_is_rows, arrays, federation, keep=None) -> None:
    """A checkpoint of ``value``, written by the calling thread; collective."""
    taken, about = parts(value, shared_is_rows), of(federation.n_clients, about)
    checkpoint.write(path, about, taken, arrays, federation, federation.communicator, keep)


def blank(value: State) -> State:
    zeros = {name: torch.zeros_like(t) for name, t, _ in state.tensors(value, True)}
    return state.replace_tensors(value, zeros)


def digests(value: State, shared_is_rows: bool, n: int) -> list[bytes]:
    return [
        state.server_digest(value, shared_is_rows),
        state.client_digests(value, shared_is_rows, slice(0, n)),
    ]


@EXAMPLES
@given(states())
def test_a_state_comes_back_bit_for_bit(tmp_path, drawn):
    value, n, is_rows = drawn
    path = tmp_path / "round-000003.h5"
    arrays = {"edges": np.arange(6).reshape(3, 2), "weights": np.array([0.1, 0.2, 0.3])}
    write(path, meta(), value, is_rows, arrays, alone(n))
    assert checkpoint.read_meta(path) == of(n, meta())
    found = checkpoint.read_state(path, blank(value), is_rows, np.arange(n))
    assert digests(found, is_rows, n) == digests(value, is_rows, n)
    assert {name: a.tolist() for name, a in checkpoint.read_arrays(path).items()} == {
        name: a.tolist() for name, a in arrays.items()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["round-000003.h5"]


@EXAMPLES
@given(states(), st.data())
def test_any_clients_can_be_read_alone(tmp_path, drawn, data):
    value, n, is_rows = drawn
    path = tmp_path / "round-000003.h5"
    write(path, meta(), value, is_rows, {}, alone(n))
    hosted = data.draw(st.lists(st.integers(0, n - 1), unique=True).map(sorted))
    part = state.select(value, torch.tensor(hosted, dtype=torch.int64), is_rows)
    ids = np.array(hosted, np.int64)
    found = checkpoint.read_state(path, blank(part), is_rows, ids)
    assert digests(found, is_rows, len(ids)) == digests(part, is_rows, len(ids))


@pytest.mark.parametrize("ids", [[], [0], [3], [0, 1, 2], [2, 3, 4], [0, 2], [1, 2, 4], [0, 2, 3]])
def test_a_selection_of_clients_is_their_rows_and_a_slice_where_they_follow(ids):
    chosen = checkpoint.selection(np.array(ids, np.int64))
    assert np.arange(5)[chosen].tolist() == ids
    assert isinstance(chosen, slice) == (bool(ids) and ids[-1] - ids[0] == len(ids) - 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("written") / "round-000003.h5"
    generator = np.random.default_rng(5)
    value = State(
        *(tensor_of(generator, (3, 4), np.float32) for _ in range(3)),
        Inner(*(tensor_of(generator, (3, 0), np.int64) for _ in range(2))),
    )
    write(path, meta(), value, True, {}, alone(3))
    return path


def test_every_truncation_is_recognised(written, tmp_path):
    whole, cut = written.read_bytes(), tmp_path / "round-000003.h5"
    cut.write_bytes(whole)
    checkpoint.read_meta(cut)
    # Every length near the block's edges and the end, and every few bytes between.
    lengths = {*range(600), *range(600, len(whole), 7), *range(len(whole) - 300, len(whole))}
    for length in sorted(lengths, reverse=True):
        os.truncate(cut, length)
        with pytest.raises(Damaged, match=r"round-000003\.h5.*(seal|mpifed checkpoint)"):
            seal.verify_seal(cut)


@settings(EXAMPLES, max_examples=300)
@given(st.data())
def test_every_flipped_bit_is_recognised(written, tmp_path, data):
    whole, flipped = bytearray(written.read_bytes()), tmp_path / "round-000003.h5"
    block = data.draw(st.booleans(), "in the user block")
    place = data.draw(st.integers(0, 511) if block else st.integers(512, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    flipped.write_bytes(whole)
    with pytest.raises(Damaged, match=str(flipped)):
        checkpoint.read_meta(flipped)


def test_a_state_of_another_form_is_not_read(written):
    rows = torch.zeros(3, 4)
    empty = Inner(torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, dtype=torch.int64))
    fits = State(rows, rows, rows, empty)
    checkpoint.read_state(written, fits, True, np.arange(3))
    for value, words in (
        (dataclasses.replace(fits, mixture=torch.zeros(3, 5)), "'mixture'.*float32.*3, 4"),
        (dataclasses.replace(fits, scale=torch.zeros(4)), "'scale'.*float32.*3, 4"),
        (dataclasses.replace(fits, mixture=rows.double()), "'mixture'.*float32.*3, 4"),
    ):
        with pytest.raises(Damaged, match=words):
            checkpoint.read_state(written, value, True, np.arange(3))
    with pytest.raises(Damaged, match=r"round-000003\.h5.* 'model'$"):
        checkpoint.read_state(written, fits, False, np.arange(3))
    more = torch.zeros(5, 4)
    wants_more = State(more, more, rows, Inner(more[:, :0].long(), more[:, :0].long()))
    with pytest.raises(Damaged, match=r"'model'.*float32.*3, 4"):
        checkpoint.read_state(written, wants_more, True, np.arange(5))


def test_the_last_k_are_kept_and_later_ones_of_a_cut_branch_go(tmp_path):
    value = Inner(torch.zeros(2, 3), torch.zeros(2))
    for round in (2, 4, 6, 8):
        path = checkpoint.path_of(tmp_path, round)
        write(path, meta(round), value, False, {}, alone(2))
        checkpoint.prune(tmp_path, 3)
    names = [path.name for path in checkpoint.checkpoints_in(tmp_path)]
    assert names == ["round-000008.h5", "round-000006.h5", "round-000004.h5"]
    # A run that goes on from round 4 has no rounds 6 and 8 yet. The damaged file of a later round
    # must not take the place of a good one among those that are kept.
    (tmp_path / "round-000008.h5").write_bytes(b"damaged")
    path = checkpoint.path_of(tmp_path, 5)
    write(path, meta(5), value, False, {}, alone(2))
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in checkpoint.checkpoints_in(tmp_path)] == ["round-000005.h5"]
    checkpoint.read_meta(path)


def test_what_cannot_be_written_leaves_the_others_alone(tmp_path, monkeypatch):
    value = Inner(torch.zeros(2, 3), torch.zeros(2))
    path = checkpoint.path_of(tmp_path, 4)
    write(path, meta(4), value, False, {}, alone(2))
    before = path.read_bytes()

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    for place in ("os.posix_fallocate", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(place, refuse)
            with pytest.raises(
                RunError, match=r"No space left on device.*round-000004\.h5.*--resume"
            ):
                write(path, meta(4), value, False, {}, alone(2))

    def sealed_and_changed(partial):
        seal.seal(partial)
        content = partial.read_bytes()
        partial.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))

    with monkeypatch.context() as patch:
        # Written without complaint, but not what was to be written.
        patch.setattr(checkpoint, "seal", sealed_and_changed)
        with pytest.raises(RunError, match=r"seal.*round-000004\.h5.*--resume"):
            write(path, meta(4), value, False, {}, alone(2))
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["round-000004.h5"]


def test_a_run_recognises_a_state_that_is_not_the_recorded_one(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    (target / "DONE").unlink()
    path = target / "checkpoints" / "round-000004.h5"
    with h5py.File(path, "r+") as file:
        file["clients/mixture"][0] = [1, 0, 0]
    seal.seal(path)
    outcome = call([*TINY, "rounds=6", "--resume", "--output", target], capfd)
    assert outcome.code == 1
    (line,) = outcome.messages
    assert re.search("round-000004.h5.* round 4", line)


def test_more_rows_than_clients_are_refused_unread(tmp_path):
    path = tmp_path / "run" / "checkpoints" / "round-000004.h5"
    mpifed.run(*TINY[:1], output=tmp_path / "run", **parse_overrides(TINY[1:]))
    with h5py.File(path, "r+") as file:
        del file["clients/mixture"]
        file.create_dataset("clients/mixture", (10**9, 3), np.float32)
    seal.seal(path)
    pattern = r"round-000004\.h5.*'mixture'.*\(1000000000, 3\).* 4 clients"
    with pytest.raises(Damaged, match=pattern):
        mpifed.load(tmp_path / "run", round=4)
    assert checkpoint.newest(tmp_path / "run")[0][1].round == 2


# Several ranks.


def content(path: Path) -> dict[str, tuple]:
    """Every attribute and data set, with its type and shape."""
    found: dict[str, tuple] = {}

    def note(name, item):
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = (str(value),)
        if isinstance(item, h5py.Dataset):
            values = item.asstr()[()] if item.dtype.kind == "O" else item[()]
            bits = values.tolist() if item.dtype.kind == "O" else values.tobytes()
            found[name] = (item.dtype.str, item.shape, bits)

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def check_that_ranks_write_what_one_writes(folder: Path) -> None:
    """Collective; ``folder`` is the same on every rank."""
    communicator = world()
    generator = np.random.default_rng(11)
    for case, n in enumerate((1, 2, 5, 11)):
        for is_rows in (False, True):
            value = State(
                tensor_of(generator, (n, 3), np.float32),
                tensor_of(generator, (n, 2, 2), np.float64),
                tensor_of(generator, (), np.int64),
                Inner(
                    tensor_of(generator, (n, 0, 3), np.float32),
                    tensor_of(generator, (n,), np.int64),
                ),
            )
            # Neither contiguous nor balanced, and the last rank may host nobody.
            owner = generator.integers(0, max(1, communicator.size - case % 2), n)
            federation = Federation(communicator, owner, owner < 0, owner + 1)
            part = state.select(value, torch.from_numpy(federation.hosted), is_rows)
            many, one = (folder / f"{name}-{case}-{is_rows}" for name in ("many", "one"))
            path = many / "round-000003.h5"
            write(path, meta(), part, is_rows, {"w": np.ones(2)}, federation)
            communicator.barrier()
            found = checkpoint.read_state(path, blank(part), is_rows, federation.hosted)
            here = len(federation.hosted)
            assert digests(found, is_rows, here) == digests(part, is_rows, here)
            if communicator.rank == 0:
                same = one / path.name
                write(same, meta(), value, is_rows, {"w": np.ones(2)}, alone(n))
                assert content(path) == content(same)
            communicator.barrier()


@pytest.mark.mpi
def test_ranks_write_what_one_writes(tmp_path):
    folder = Path(world().broadcast_object(str(tmp_path)))
    check_that_ranks_write_what_one_writes(folder)


def test_a_foreign_run_directory_is_not_gone_on_with(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    (target / "DONE").unlink()
    for path in (target / "checkpoints").iterdir():
        with h5py.File(path, "r+") as file:
            stored = json.loads(file["meta"].attrs["configuration"])
            stored["local"] = [stored["local"]]
            file["meta"].attrs["configuration"] = json.dumps(stored)
        seal.seal(path)
    before = (target / "metrics.csv").read_bytes()
    newest = target / "checkpoints" / "round-000004.h5"
    outcome = call([*TINY, "--quiet", "--resume", newest, "--output", target], capfd)
    assert outcome.code == 2 and re.search("local .*mapping", outcome.messages[0])
    for text in ("- 1\n", "a: &a [*a]\n", "rounds: .nan\n", "rounds: 2024-13-45\n"):
        (target / "config.yaml").write_text(text)
        for name in ("round-000002.h5", "round-000004.h5"):
            (target / "checkpoints" / name).unlink(missing_ok=True)
        outcome = call([*TINY, "--quiet", "--resume", "--output", target], capfd)
        assert (outcome.code, len(outcome.messages)) == (2, 1), outcome
        assert "config.yaml" in outcome.messages[0]
    assert (target / "metrics.csv").read_bytes() == before
