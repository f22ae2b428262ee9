"""Words and files that do not go: one sentence, exit code 2, and nothing written.

Each case says what is asked for, and what the sentence must name, as patterns: the key, its value,
what is allowed.
"""

from __future__ import annotations

import json
from pathlib import Path

import commands
import pytest
from commands import TINY, call, checked_refusal

from mpifed.testing import world

PLAIN = {
    "clients": 4,
    "rounds": 3,
    "data": {"name": "synthetic", "n_test": 20, "dimension": 6, "seed": 20},
    "local": {"batch_size": 16},
    "algorithm": "fedavg",
}
EIGHT, TWENTY = {"clients": 8}, {"clients": 20}
FLIP = {"name": "sign_flip", "clients": [1]}
NOISE = {"noise_multiplier": 1.0, "clip_norm": 0.5, "delta": 0.01}
LOCAL_NOISE = {**NOISE, "where": "local"}
RING = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
COMPLETE = {"name": "gossip", "topology": "complete"}
WAIT_FREE = {**RING, "asynchrony": "wait_free"}
DIRECTED = {"name": "gossip", "topology": None, "weights": None, "schedule": "static_exponential"}
SECONDS = {"compute": {"seconds": 0.1}, "local": {"steps": 3, "batch_size": 16}}
GATE = {"name": "bernoulli", "p": 0.5}


def server(**options):
    return {"exchange": {"name": "server", **options}}


def krum(**more):
    return {**TWENTY, **server(aggregator="krum"), **more}


def median(**more):
    return {**TWENTY, **server(aggregator="median"), **more}


def attacked(**attack):
    return {"attack": attack}


def private(**options):
    return {"privacy": {**NOISE, **options}}


def observed(**more):
    return {"exchange": RING, "privacy": {**LOCAL_NOISE, "observers": "messages"}, **more}


def corrected(correction, n=8, **exchange):
    return {"clients": n, "exchange": {**RING, "correction": correction, **exchange}}


def unhurried(**more):
    """Without waiting: gossip with other options, and other sections."""
    exchange = {**WAIT_FREE, **more.pop("exchange", {})}
    return {**SECONDS, **more, "exchange": exchange}


def cnn(**options):
    return {"data": "digits", "model": {"name": "network_modules:cnn", **options}}


TOGETHER = {
    # Aggregators of a server.
    "the median of sums": (median(algorithm="scaffold"), ["algorithm.*'scaffold'"]),
    "the median of all": (
        {**TWENTY, **server(aggregator="median", average_over="all")},
        ["exchange.average_over.*'all'"],
    ),
    "the median of biased messages": (
        median(compression={"name": "top_k", "k": 3}),
        ["compression.*'top_k'"],
    ),
    "the median of two": (median(participation=0.1), ["'median'.* 2 clients"]),
    "the trimmed mean of four": (
        {**TWENTY, **server(aggregator="trimmed_mean"), "participation": 0.2},
        ["'trimmed_mean'.* 4 clients"],
    ),
    "krum of an unknown number": (
        krum(participation={"name": "bernoulli", "p": 0.5}),
        [r"participation.*'bernoulli'.* 0\.5.*'krum'"],
    ),
    "krum of clusters": (krum(algorithm="ifca"), ["algorithm.*'ifca'"]),
    "krum of two": (krum(participation=0.1), ["'krum'.* 2 clients"]),
    "krum of neighbours": (
        {"exchange": {"name": "gossip", "aggregator": "krum"}},
        ["exchange.aggregator"],
    ),
    "the median of a client alone": (median(algorithm="local"), ["algorithm.*'local'"]),
    "neighbours before a mean": (
        {**EIGHT, **server(pre_aggregator="nnm")},
        ["exchange.aggregator.*'mean'"],
    ),
    "too few buckets": (
        {**EIGHT, **server(aggregator="krum", pre_aggregator={"name": "bucketing", "size": 4})},
        ["'krum'.*'bucketing'.* 2 updates"],
    ),
    "mda without attackers": (
        {**EIGHT, **server(aggregator={"name": "mda", "byzantine": 0.1})},
        ["'mda'.* 8 clients"],
    ),
    "nobody to trust": (
        {**EIGHT, **server(aggregator={"name": "monna", "trusted": 8})},
        ["monna"],
    ),
    "centres of clusters": (
        {**EIGHT, **server(aggregator="centred_clipping"), "algorithm": "ifca"},
        ["centred_clipping", "ifca"],
    ),
    # Attacks.
    "nobody attacks": (attacked(name="sign_flip"), ["attack.clients", "attack.fraction"]),
    "attackers named twice": (
        attacked(**FLIP, fraction=0.1),
        ["attack.clients", "attack.fraction"],
    ),
    "one label": (
        attacked(name="label_flip", clients=[1], source=1),
        ["attack.source.*attack.target"],
    ),
    "an attack that reaches nobody": (
        {**attacked(**FLIP), "algorithm": "local"},
        ["'local'.*'sign_flip'.*fedavg"],
    ),
    "an unknown attack": (attacked(name="sign_flop", clients=[1]), ["'sign_flip'"]),
    "an attack on tracking": (
        {**attacked(**FLIP), "algorithm": "kgt", "exchange": "gossip"},
        ["kgt"],
    ),
    "an attacker that is not there": (
        attacked(name="sign_flip", clients=[4]),
        [r"attack\.clients.* 4\b.* 0 to 3"],
    ),
    "a label that is not there": (
        attacked(name="label_flip", clients=[1], source=2, target=0),
        ["attack.source.* 2.* 0 to 1"],
    ),
    "an attack on a mean among neighbours": (
        {**EIGHT, **attacked(name="ipm", clients=[1]), "exchange": {"name": "gossip"}},
        ["'gossip'.*'ipm'.*server"],
    ),
    "an attack on two messages": (
        {**EIGHT, **attacked(name="alie", clients=[1]), "algorithm": "scaffold"},
        ["scaffold"],
    ),
    # Privacy.
    "private clusters": ({**private(), "algorithm": "ifca"}, ["algorithm.*'ifca'"]),
    "private sums": ({**private(), "algorithm": "scaffold"}, ["algorithm.*'scaffold'"]),
    "private and alone": ({**private(), "algorithm": "local"}, ["algorithm.*'local'"]),
    "private restarts": (
        {**private(), "algorithm": {"name": "fedem", "restarts": 2}},
        ["algorithm.restarts.* 2"],
    ),
    "a centre of neighbours": (
        {**private(), "exchange": "gossip"},
        ["privacy.where.*'central'"],
    ),
    "a private median": (
        {**private(), **server(aggregator="median")},
        ["exchange.aggregator.*'median'"],
    ),
    "a private mean of all": (
        {**private(), **server(average_over="all")},
        ["exchange.average_over.*'all'.*participants"],
    ),
    "private and compressed": (
        {**private(), "compression": "quantise"},
        ["compression.*'quantise'"],
    ),
    "private without who diverges": (
        {**private(), "on_divergence": "drop"},
        ["on_divergence.*'drop'"],
    ),
    "a large delta": (private(delta=0.5), ["privacy.delta.* 0.5"]),
    "noise without clipping": (private(clip_norm=None), ["privacy.clip_norm"]),
    "clipping without noise": (private(noise_multiplier=None), ["privacy.clip_norm"]),
    "a centre among neighbours": (
        {"exchange": RING, **private(where="central")},
        ["privacy.where.*'central'.*local"],
    ),
    "private tracking": (
        {"exchange": {**RING, "correction": "tracking"}, "privacy": LOCAL_NOISE},
        ["exchange.correction.*'tracking'"],
    ),
    "private compressed neighbours": (
        {"exchange": RING, "privacy": LOCAL_NOISE, "compression": "quantise"},
        ["compression.*'quantise'"],
    ),
    "observers of skipped rounds": (
        observed(algorithm="scaffnew"),
        ["algorithm.*'scaffnew'"],
    ),
    "observers of half moves": (
        {
            "exchange": RING,
            "privacy": {**LOCAL_NOISE, "observers": "averages"},
            "algorithm": {"name": "pfedme", "beta": 0.5},
        },
        ["algorithm.beta.* 0.5"],
    ),
    "observers of many rounds": (observed(rounds=2501), ["rounds.* 2501"]),
    "observers of a server": (observed(exchange="server"), ["exchange.*'server'"]),
    "pairs at a server": (
        {"privacy": {**LOCAL_NOISE, "pairwise_multiplier": 1.0}},
        ["exchange.*'server'"],
    ),
    "observers without noise": (
        {"exchange": RING, "privacy": {"where": "local", "delta": 0.01, "observers": "messages"}},
        ["privacy.noise_multiplier"],
    ),
    # Gossip without waiting.
    "tracking without waiting": (
        unhurried(exchange={"correction": "tracking"}),
        ["exchange.correction.*'tracking'"],
    ),
    "compressed without waiting": (
        unhurried(compression="quantise"),
        ["compression.*'quantise'"],
    ),
    "left out without waiting": (
        unhurried(on_divergence="drop"),
        ["on_divergence.*'drop'.*stop"],
    ),
    "no time": (unhurried(compute={"seconds": 0.0}), ["compute.seconds.* 0.0"]),
    "measured times": (unhurried(compute={"name": "measured"}), ["compute.name.*'measured'"]),
    "a part of the steps": (
        unhurried(participation={"name": "stragglers", "rate": 0.4, "late": "partial"}),
        ["participation", "miss"],
    ),
    "pairs in some rounds": (
        unhurried(
            exchange={
                "asynchrony": "pairwise",
                "schedule": {"name": "static", "local_rounds": 2},
            }
        ),
        ["pairwise", "local_rounds"],
    ),
    "an unknown way not to wait": (
        unhurried(exchange={"asynchrony": "waitfree"}),
        ["exchange.asynchrony", "'wait_free'"],
    ),
    "one version": (
        unhurried(exchange={"kept_versions": 1}),
        [r"exchange\.kept_versions.* 1\b.*at least 2"],
    ),
    **{
        f"{name} without waiting": (
            unhurried(algorithm=name, **({} if name == "d_admm" else {"local": {}})),
            ["exchange.asynchrony.*'wait_free'"],
        )
        for name in ("kgt", "scaffnew", "d_admm")
    },
    # Clients that choose whom they mix with.
    "a choice among those who are there": (
        {"exchange": {**COMPLETE, "correction": "dpfl"}, "participation": 0.5},
        ["participation.* 0.5", "dpfl"],
    ),
    "a choice of mixtures": (
        {"exchange": {**COMPLETE, "correction": "dpfl"}, "algorithm": "fedem"},
        ["'fedem'", "'dpfl'"],
    ),
    "a choice of two models": (
        {"exchange": {**COMPLETE, "correction": "morph"}, "algorithm": "apfl"},
        ["'apfl'", "'morph'"],
    ),
    "a choice of what is not sent": (
        {"exchange": {**COMPLETE, "correction": "morph"}, "algorithm": "flix"},
        ["'flix'"],
    ),
    "momentum of another model": (
        {"exchange": COMPLETE, "algorithm": "fedspd", "local": {"momentum": 0.9}},
        ["local.reset_momentum.*fedspd.*local.momentum"],
    ),
    # Corrections that matrices do not fit.
    "tracking by rows": (
        corrected("tracking", topology=None, weights=None, schedule="random_walk"),
        ["tracking"],
    ),
    "extra by arcs": (
        corrected("extra", topology=None, weights=None, schedule="one_peer_exponential"),
        ["'extra'.*symmetric.*exchange.schedule"],
    ),
    "d2 on a ring": (corrected("d2"), ["eigenvalue.* -0.333333.* -0.333333"]),
    "relays on a ring": (corrected("relay_sum"), ["'relay_sum'.*tree.* 8 edges"]),
    "relays on changing trees": (
        corrected("relay_sum", topology="path", schedule="matchings", weights=None),
        ["static"],
    ),
    "push-sum of differences": (
        corrected("push_sum", topology="star", weights="best_constant"),
        ["'push_sum'.* round 1.*weight.* -0.556"],
    ),
    "tracking among some": (
        {
            **corrected("tracking", topology=None, weights=None, schedule="equitopo"),
            "participation": 0.5,
        },
        ["'tracking'.*push_sum"],
    ),
    "cliques of a ring": (corrected("clique_averaging"), ["exchange.schedule", "d_cliques"]),
    # Compressors.
    "no coordinate": (
        {"compression": {"name": "rand_k", "k": 0}},
        ["compression.k.* 0.*at least 1"],
    ),
    "an option of a part": (
        {"compression": {"name": "bernoulli", "inner": {"name": "rand_k", "kk": 3}}},
        ["compression.inner.kk"],
    ),
    "a part that sends all": (
        {"compression": {"name": "composition", "inner": "quantise"}},
        ["compression.inner.*'quantise'.*rand_k, top_k"],
    ),
    "a gate within": (
        {"compression": {"name": "composition", "outer": "bernoulli"}},
        ["bernoulli", "gate"],
    ),
    "no compressor of a list": ({"compression": []}, ["compression.*list"]),
    "an unknown compressor of a list": (
        {"compression": ["top_kk", "quantise"]},
        [r"compression\[0\]\.name.*'top_kk'.*'top_k'"],
    ),
    "an unknown option of a list": (
        {"compression": ["top_k", {"name": "quantise", "bit": 3}]},
        [r"compression\[1\]\.bit'.*'bits'"],
    ),
    "a list that ends in coordinates": (
        {"compression": ["quantise", "top_k"]},
        ["compression.inner.*'quantise'.*rand_k, top_k"],
    ),
    "a list with a gate before": (
        {"compression": ["top_k", {**GATE, "inner": "rand_k"}]},
        [r"compression\[1\]\.inner.*bernoulli.*none"],
    ),
    # Networks and times.
    "a negative latency": ({"network": {"latency": -1}}, ["network.latency.* -1.* 0"]),
    "a site without a file": ({"network": {"server": 1}}, ["network.server.* 1.*network.path"]),
    "paths without bandwidth": (
        {"network": {"link": "per_path"}},
        ["network.link.*per_path.*network.bandwidth"],
    ),
    "no server": (
        {"network": {"server": "all_reduce", "server_bandwidth": 1}},
        ["network.server_bandwidth.*network.server=all_reduce"],
    ),
    "times that do not differ": (
        {"compute": {"name": "lognormal", "seconds": 1}},
        ["compute.seconds.* 0.*compute.client_sigma.*compute.round_sigma.* 0"],
    ),
    "a trace without a file": ({"compute": {"name": "trace"}}, ["'trace'.*compute.path"]),
    # Networks of the user.
    "stacked dropout": (
        {**cnn(dropout=0.5), "local": {"stepping": "stacked"}},
        ["local.stepping.*'stacked'.*auto, one_by_one"],
    ),
    "whole risks of a batch": (
        {**cnn(norm=True), "algorithm": "fomaml"},
        ["'network_modules:cnn'.*'fomaml'.*GroupNorm"],
    ),
    "compressed variances": (
        {**cnn(norm=True), "compression": "quantise"},
        ["compression.name.*'quantise'.*local.buffers=local"],
    ),
    # Ranks.
    "an unknown way to host": ({"hosts": "nodes"}, ["hosts.*'nodes'.*'cores'"]),
}

# Words behind those of ``TINY``.
WORDS = {
    "unknown experiment": (["no-such"], "'synthetic-fedem'.*'no-such'"),
    "unknown key": (["round=3"], "'round'.*'rounds'"),
    "unknown algorithm": (["algorithm=fedeem"], "'fedem'"),
    "unknown device": (["device=tpu"], "device.*'tpu'.*auto, cpu, cuda"),
    "topology under a server": (["exchange.topology=ring"], "exchange.topology", "exchange=gossip"),
    "text for a number": (["rounds=many"], "rounds.*'many'.*whole number"),
    "a number for a section": (["compute=3"], r"compute.* 3\b.*mapping"),
    "a list for a section": (["privacy=[1]"], r"privacy.* \[1\].*mapping"),
    "negative rounds": (["rounds=-1"], "rounds.* -1.*at least 1"),
    "more threads than can start": (["threads=1000000"], "threads.* 1000000.* 1024"),
    "nobody takes part": (["participation=0"], r"participation.* 0\b.*above 0"),
    "bernoulli without p": (["participation=bernoulli"], "participation.p"),
    "no validation samples": (
        ["evaluation.validation_split=true"],
        "evaluation.validation_split.* true.*'synthetic-paper'",
    ),
    "two kinds of validation samples": (
        ["evaluation.validation_split=true", "evaluation.validation_fraction=0.2"],
        r"validation_fraction.* 0\.2.*evaluation\.validation_split.* True.* 0\.0",
    ),
    "unseen with local": (
        ["algorithm=local", "evaluation.unseen_fraction=0.5"],
        r"evaluation\.unseen_fraction.* 0\.5.*algorithm.*'local'.* 0\.0",
    ),
    "autocast of float64": (
        ["model=mlp", "local.autocast=bfloat16", "dtype=float64"],
        "dtype.*'float64'.*local.autocast.*'bfloat16'.*float32",
    ),
    "hypercube of nine": (
        ["clients=9", "exchange=gossip", "exchange.topology=hypercube"],
        "hypercube.* n .*9.*power of two.* 8 and 16",
    ),
    "graph that never connects": (
        ["clients=30", "exchange=gossip", "exchange.topology.p=0.001"],
        "erdos_renyi.* 30.* 0.001.*disconnected.*on_disconnected",
    ),
    "no graphics card": (["device=cuda"], "device.*'cuda'.*GPU.*auto, cpu"),
    "value that is no YAML": (["rounds=[1"], r"'\[1'.*YAML"),
    "value that runs code": (["rounds=!!python/object/apply:os.getcwd []"], "YAML"),
    "module missing": (["algorithm=no_such_module:x"], "'no_such_module'"),
    "other ranks": (["--expect-ranks", "77"], r"--expect-ranks.* 77\b.*MPI"),
    "unknown list": (["--list", "algoritms"], "'algorithms'"),
    "resume from nowhere": (["--resume", "no/such/file.h5"], "--resume.*no/such/file.h5"),
    "a layer that is missing": (
        ["model=mlp", "algorithm=fedrep", "algorithm.head=[layer.1]"],
        *("algorithm.head", "'layers.1'"),
    ),
}
FILES = {
    "no YAML": ("rounds: [1\n", "line 2", "YAML"),
    "a list": ("- rounds", "mapping"),
    "nothing": ("", "mapping"),
    "a key twice": ("rounds: 2\nclients: 3\nrounds: 4", "line 3.*'rounds'.*twice"),
    "code": ("rounds: !!python/object/apply:os.system ['touch here']", "YAML"),
    "not UTF-8": (b"rounds: \xff\xfe", "UTF-8"),
    "a value that grows": (
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nrounds: [*c,*c,*c,*c,*c,*c,*c,*c,*c]",
        "key 'a'.*rounds",
    ),
    "a value that holds itself": ("rounds: &a [*a]", "line 1.*itself"),
}
REFUSED = {
    **{case: (None, words, names) for case, (words, *names) in WORDS.items()},
    **{case: (content, [], names) for case, (content, *names) in FILES.items()},
    **{
        case: (json.dumps({**PLAIN, **mapping}), [], names)
        for case, (mapping, names) in TOGETHER.items()
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_one_sentence_with_exit_code_two_and_nothing_is_written(
    case, tmp_path, capfd, monkeypatch
):
    monkeypatch.syspath_prepend(commands.HERE)
    monkeypatch.chdir(tmp_path)
    content, words, names = REFUSED[case]
    experiment = []
    if content is not None:
        experiment = [tmp_path / "experiment.yaml"]
        experiment[0].write_bytes(content if isinstance(content, bytes) else content.encode())
    before = TINY if content is None else experiment
    outcome = call([*before, *words, "--output", tmp_path / "run"], capfd)
    checked_refusal(outcome, *names)
    assert list(tmp_path.iterdir()) == experiment


@pytest.mark.mpi
@pytest.mark.parametrize(
    "case",
    [
        *("negative rounds", "graph that never connects", "module missing", "other ranks"),
        *("resume from nowhere", "unknown list"),
    ],
)
def test_all_ranks_refuse_and_one_speaks(case, tmp_path, capfd, monkeypatch):
    def aborted(self, code):
        raise AssertionError("input that every rank can refuse needs no abort")

    _, words, names = REFUSED[case]
    communicator = world()
    monkeypatch.setattr(type(communicator), "abort", aborted)
    target = Path(communicator.broadcast_object(str(tmp_path))) / "run"
    outcome = call([*TINY, *words, "--output", target], capfd)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == (communicator.rank == 0)
    if communicator.rank == 0:
        checked_refusal(outcome, *names)
    communicator.barrier()
    assert not target.exists()
