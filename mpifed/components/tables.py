"""Names of components: a table of import paths for each kind."""

from __future__ import annotations

ALGORITHMS = {
    "local": "mpifed.algorithms.global_model.local:Local",
    "fedavg": "mpifed.algorithms.global_model.fedavg:FedAvg",
    "fedavg_ft": "mpifed.algorithms.global_model.fedavg_ft:FedAvgFineTuned",
    "fedprox": "mpifed.algorithms.global_model.fedprox:FedProx",
    "scaffold": "mpifed.algorithms.global_model.scaffold:Scaffold",
    "qffl": "mpifed.algorithms.global_model.qffl:Qffl",
    "agnostic": "mpifed.algorithms.global_model.agnostic:Agnostic",
    "mocha": "mpifed.algorithms.personal.mocha:Mocha",
    "fedem": "mpifed.algorithms.fedem.fedem:FedEM",
    "fedgmm": "mpifed.algorithms.fedem.fedgmm:FedGMM",
    "clustered": "mpifed.algorithms.clusters.clustered:Clustered",
    "ifca": "mpifed.algorithms.clusters.ifca:Ifca",
    "fedper": "mpifed.algorithms.shared_body.fedper:FedPer",
    "fedrep": "mpifed.algorithms.shared_body.fedrep:FedRep",
    "fedbabu": "mpifed.algorithms.shared_body.fedbabu:FedBABU",
    "fedbn": "mpifed.algorithms.shared_body.fedbn:FedBN",
    "fedala": "mpifed.algorithms.personal.fedala:FedALA",
    "knn_per": "mpifed.algorithms.personal.knn_per:KnnPer",
    "fedrod": "mpifed.algorithms.shared_body.fedrod:FedRoD",
    "fedrod_hyper": "mpifed.algorithms.shared_body.fedrod:FedRoDHyper",
    "flix": "mpifed.algorithms.flix.flix:Flix",
    "dcgd": "mpifed.algorithms.flix.dcgd:Dcgd",
    "diana": "mpifed.algorithms.flix.diana:Diana",
    "fomaml": "mpifed.algorithms.global_model.maml:Fomaml",
    "maml": "mpifed.algorithms.global_model.maml:Maml",
    "reptile": "mpifed.algorithms.global_model.maml:Reptile",
    "fedmm": "mpifed.algorithms.fedmm.fedmm:FedMM",
    "fedmm_theta": "mpifed.algorithms.fedmm.fedmm_theta:FedMMTheta",
    "sa_ssmm": "mpifed.algorithms.fedmm.sa_ssmm:SaSsmm",
    "fedmgs": "mpifed.algorithms.fedmm.fedmgs:FedMGS",
    "fedmm_ot": "mpifed.algorithms.fedmm.fedmm_ot:FedMMOT",
    "fedadam": "mpifed.algorithms.global_model.fedadam:FedAdam",
    "ditto": "mpifed.algorithms.personal.ditto:Ditto",
    "apfl": "mpifed.algorithms.personal.apfl:APFL",
    "pfedme": "mpifed.algorithms.personal.pfedme:PFedMe",
    "l2gd": "mpifed.algorithms.personal.l2gd:L2GD",
    "l2sgd": "mpifed.algorithms.personal.l2gd:L2SGD",
    "kgt": "mpifed.algorithms.global_model.kgt:KGT",
    "scaffnew": "mpifed.algorithms.global_model.scaffnew:Scaffnew",
    "d_admm": "mpifed.algorithms.global_model.d_admm:DADMM",
}
DATASETS = {
    "synthetic": "mpifed.data.sources.synthetic:Synthetic",
    "digits": "mpifed.data.sources.digits:Digits",
    "mnist": "mpifed.data.sources.mnist:Idx",
    "emnist": "mpifed.data.sources.mnist:Emnist",
    "cifar10": "mpifed.data.sources.cifar:Cifar10",
    "cifar100": "mpifed.data.sources.cifar:Cifar100",
    "omniglot": "mpifed.data.sources.omniglot:Omniglot",
    "leaf": "mpifed.data.sources.leaf:Leaf",
    "femnist": "mpifed.data.sources.leaf:Femnist",
    "shakespeare": "mpifed.data.sources.shakespeare:Shakespeare",
    "arrays": "mpifed.data.from_python:Arrays",
    "npz": "mpifed.data.sources.npz:Npz",
    "csv": "mpifed.data.sources.csv_file:Csv",
    "parquet": "mpifed.data.sources.parquet:Parquet",
    "federated": "mpifed.data.federated_file:FederatedFile",
    "libsvm": "mpifed.data.sources.libsvm:LibSvm",
    "sine": "mpifed.data.sources.sine:Sine",
    "tags": "mpifed.data.sources.tags:Tags",
    "tags_file": "mpifed.data.sources.tags:TagsFile",
    "dictionary": "mpifed.data.sources.fedmm:Dictionary",
    "poisson": "mpifed.data.sources.fedmm:Poisson",
    "gaussian_mixture": "mpifed.data.sources.fedmm:GaussianMixture",
    "ratings": "mpifed.data.sources.ratings:Ratings",
    "transport": "mpifed.optimal_transport.dataset:Transport",
}
MODELS = {
    "linear": "mpifed.models.linear:linear",
    "mlp": "mpifed.models.mlp:mlp",
    "cnn": "mpifed.models.cnn:cnn",
    "mobilenet_v2": "mpifed.models.mobilenet:mobilenet_v2",
    "resnet18": "mpifed.models.resnet:resnet18",
    "resnet34": "mpifed.models.resnet:resnet34",
    "lstm": "mpifed.models.lstm:lstm",
    "icnn": "mpifed.models.icnn:icnn",
    "none": "mpifed.models.base:none",
}
EXCHANGES = {
    "server": "mpifed.exchange.server:Server",
    "gossip": "mpifed.exchange.gossip:Gossip",
}
COMPRESSORS = {
    "none": "mpifed.exchange.compression:Identity",
    "identity": "mpifed.exchange.compression:Identity",
    "rand_k": "mpifed.exchange.compression:RandK",
    "top_k": "mpifed.exchange.compression:TopK",
    "quantise": "mpifed.exchange.compression:Quantise",
    "natural": "mpifed.exchange.compression:Natural",
    "bernoulli": "mpifed.exchange.compression:Bernoulli",
    "composition": "mpifed.exchange.compression:Composition",
}
CORRECTIONS = {
    "none": "mpifed.exchange.corrections.base:Plain",
    "tracking": "mpifed.exchange.corrections.tracking:Tracking",
    "extra": "mpifed.exchange.corrections.extra:Extra",
    "exact_diffusion": "mpifed.exchange.corrections.diffusion:ExactDiffusion",
    "d2": "mpifed.exchange.corrections.diffusion:D2",
    "clique_averaging": "mpifed.exchange.corrections.clique_averaging:CliqueAveraging",
    "quasi_global": "mpifed.exchange.corrections.quasi_global:QuasiGlobal",
    "decentlam": "mpifed.exchange.corrections.decentlam:DecentLaM",
    "push_sum": "mpifed.exchange.corrections.push_sum:PushSum",
    "clipped_gossip": "mpifed.exchange.corrections.clipped_gossip:ClippedGossip",
    "relay_sum": "mpifed.exchange.corrections.relay_sum:RelaySum",
}
AGGREGATORS = {
    "mean": "mpifed.exchange.aggregation:Mean",
    "median": "mpifed.exchange.aggregation:Median",
    "trimmed_mean": "mpifed.exchange.aggregation:TrimmedMean",
    "krum": "mpifed.exchange.aggregation:Krum",
    "geometric_median": "mpifed.exchange.aggregation:GeometricMedian",
}
SERVER_OPTIMIZERS = {
    "sgd": "mpifed.exchange.server_optimizers:Sgd",
    "momentum": "mpifed.exchange.server_optimizers:Momentum",
    "nesterov": "mpifed.exchange.server_optimizers:Nesterov",
    "adagrad": "mpifed.exchange.server_optimizers:Adagrad",
    "yogi": "mpifed.exchange.server_optimizers:Yogi",
    "adam": "mpifed.exchange.server_optimizers:Adam",
}
ATTACKS = {
    "none": "mpifed.exchange.attacks:NoAttack",
    "label_flip": "mpifed.exchange.attacks:LabelFlip",
    "sign_flip": "mpifed.exchange.attacks:SignFlip",
    "model_replacement": "mpifed.exchange.attacks:ModelReplacement",
}
SURROGATES = {
    "quadratic": "mpifed.surrogates.quadratic:quadratic",
    "poisson": "mpifed.surrogates.poisson:poisson",
    "gaussian_mixture": "mpifed.surrogates.gaussian_mixture:gaussian_mixture",
    "dictionary": "mpifed.surrogates.dictionary:dictionary",
    "remark_one": "mpifed.surrogates.remark_one:remark_one",
}

TABLES = {
    "algorithm": ALGORITHMS,
    "data": DATASETS,
    "model": MODELS,
    "exchange": EXCHANGES,
    "compression": COMPRESSORS,
    "correction": CORRECTIONS,
    "aggregator": AGGREGATORS,
    "server_optimizer": SERVER_OPTIMIZERS,
    "attack": ATTACKS,
    "surrogate": SURROGATES,
}

# Base classes from which the components of a kind derive, one of them where there are several.
BASES = {
    "algorithm": ("mpifed.algorithms.base:Algorithm",),
    "data": ("mpifed.data.base:Dataset",),
    "exchange": ("mpifed.exchange.base:Exchange",),
    "compression": ("mpifed.exchange.compression:Compressor",),
    "correction": ("mpifed.exchange.corrections.base:Correction",),
    "aggregator": (
        "mpifed.exchange.aggregation:ByCoordinates",
        "mpifed.exchange.aggregation:ByProducts",
    ),
    "server_optimizer": ("mpifed.exchange.server_optimizers:ServerOptimizer",),
    "attack": ("mpifed.exchange.attacks:Attack",),
    "surrogate": ("mpifed.surrogates.base:Surrogate",),
}

# Kinds with a base class whose objects a user's function may make.
MADE_BY_FUNCTIONS = ("compression", "correction", "surrogate")

# The word after ``--list`` that shows the names of a kind.
LISTS = {
    "algorithm": "algorithms",
    "data": "datasets",
    "model": "models",
    "exchange": "exchanges",
    "participation": "participation",
    "topology": "topologies",
    "weights": "weights",
    "schedule": "schedules",
    "correction": "corrections",
    "compression": "compressors",
    "aggregator": "aggregators",
    "server_optimizer": "server_optimizers",
    "attack": "attacks",
    "surrogate": "surrogates",
}
