"""What a data set of your own needs, and all of the project that mpifed's data sets import. A data
set derives from one of three classes.

``Dataset``
    Any data: a ``description`` that every rank makes, and ``load``, which returns the ``Shards`` of
    the clients of a rank, a ``Split`` of samples each for training, validation and tests.
``GeneratedDataset``
    Samples that are drawn client by client. It has ``_make``.
``PooledDataset``
    Samples of one source, which rank 0 reads, deals to the clients by a partition, and sends. It
    passes a function that returns a ``Source``: a ``Pool``, and what this is dealt by.

* ``Description``, ``Task``, ``ProblemDescription``: what every rank knows about a data set, and
  what is to be learnt; one that poses a problem beside its samples
* ``Shards``, ``Split``, ``SplitName``, ``SPLITS``, ``empty_split``: samples of clients; the names
  of the splits; a split whose samples are still to be written
* ``alike``, ``parts_up_to``: the description of clients that are all of one size; clients in
  parts of so many samples
* ``archives``: files, directories and archives: ``located``, ``contents``, ...
* ``tables``: a user's own samples, checked: ``Columns``, ``OwnSamples``, ...
* ``preprocessing``, ``Preprocessing``: what samples go through before models see them, for new
  ones: means, deviations, texts of columns; what a CSV file's cells are
* ``tokens``: texts as tokens: ``Tokeniser``, ``padded``, ...
* ``cells``: what the columns of a table are: ``columns_of``, ...
* ``partitions``, ``kmeans``: rules by which samples are dealt, the types of their options, and
  clusters of equal size
* ``decoded``: a PNG or JPEG picture as bytes
* ``stream``, ``key``: randomness by a seed, a purpose, a round and a client
* ``bits_at``, ``shuffles``: many such numbers, or orders, at once
* ``Communicator``, ``agreed``: the ranks, and what one of them finds for all
* ``check_memory``: refuses what memory cannot hold
* ``raise_if_stop_requested``, ``step``: called while files are read or samples drawn, by which a
  run can end early, and is seen to go on

Examples
--------
Clients with a slope of their own:

>>> import numpy as np
>>> import torch
>>> class Slopes(GeneratedDataset):
...     def __init__(self, n_clients, run_seed, communicator, *, samples: int = 20):
...         self.seed = run_seed
...         counts = (samples, 0, samples)
...         self.description = alike("slopes", (1,), 1, n_clients, counts, "regression")
...
...     def _make(self, client, split, n):
...         slope = stream(self.seed, "slopes", client=client).normal()
...         x = stream(self.seed, f"slopes/{split}", client=client).normal(size=(n, 1))
...         return x, slope * x
>>> shards = Slopes(100, 0, None).load(np.array([3, 7]), torch.float64)
>>> shards.train.x.shape, shards.train.counts.tolist(), shards.val.counts.tolist()
(torch.Size([40, 1]), [20, 20], [0, 0])
"""

from __future__ import annotations

from mpifed.data import archives, cells, kmeans, partitions, preprocessing, tables, tokens
from mpifed.data.base import (
    SPLITS,
    Dataset,
    Description,
    GeneratedDataset,
    ProblemDescription,
    Shards,
    Split,
    SplitName,
    Task,
    agreed,
    alike,
    empty_split,
    parts_up_to,
)
from mpifed.data.images import decoded
from mpifed.data.partitioned import Pool, PooledDataset, Source
from mpifed.data.preprocessing import Preprocessing
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import bits_at, key, shuffles, stream
from mpifed.watchdog.heartbeat import raise_if_stop_requested, step

__all__ = [
    "SPLITS",
    "Communicator",
    "Dataset",
    "Description",
    "GeneratedDataset",
    "Pool",
    "PooledDataset",
    "Preprocessing",
    "ProblemDescription",
    "Shards",
    "Source",
    "Split",
    "SplitName",
    "Task",
    "agreed",
    "alike",
    "archives",
    "bits_at",
    "cells",
    "check_memory",
    "decoded",
    "empty_split",
    "key",
    "kmeans",
    "partitions",
    "parts_up_to",
    "preprocessing",
    "raise_if_stop_requested",
    "shuffles",
    "step",
    "stream",
    "tables",
    "tokens",
]
