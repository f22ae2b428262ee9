"""Names of components: a table of import paths for each kind."""

from __future__ import annotations

# Methods: the class, in ``mpifed.algorithms``; the title, as papers print it; and the number of its
# colour, modulo the number of colours there are. Methods that papers compare have different ones,
# and of two with one colour the one with the lower number has it. What a method learns and sends,
# and its paper, are in its module.
METHODS: dict[str, tuple[str, str, int | None]] = {
    "local": ("global_model.local:Local", "Local", 2),
    "fedavg": ("fedavg.fedavg:FedAvg", "FedAvg", 1),
    "fedavg_ft": ("fedavg.fedavg_ft:FedAvgFineTuned", "FedAvg+", 4),
    "fedprox": ("fedavg.fedprox:FedProx", "FedProx", 3),
    "scaffold": ("global_model.scaffold:Scaffold", "SCAFFOLD", 7),
    "svrg": ("fedavg.svrg:Svrg", "SVRG", None),
    "qffl": ("global_model.qffl:Qffl", "q-FFL", None),
    "agnostic": ("global_model.agnostic:Agnostic", "AFL", None),
    "mocha": ("personal.mocha:Mocha", "MOCHA", 11),
    "fedem": ("fedem.fedem:FedEM", "FedEM", 0),
    "fedgmm": ("fedem.fedgmm:FedGMM", "FedGMM", 16),
    "clustered": ("clusters.clustered:Clustered", "Clustered FL", 5),
    "ifca": ("clusters.ifca:Ifca", "IFCA", 17),
    "fedspd": ("fedem.fedspd:FedSPD", "FedSPD", None),
    "fedper": ("shared_body.fedper:FedPer", "FedPer", 13),
    "fedrep": ("shared_body.fedrep:FedRep", "FedRep", 14),
    "fedbabu": ("shared_body.fedbabu:FedBABU", "FedBABU", None),
    "fedbn": ("shared_body.fedbn:FedBN", "FedBN", None),
    "lg_fedavg": ("shared_body.lg_fedavg:LGFedAvg", "LG-FedAvg", None),
    "fedpac": ("shared_body.fedpac:FedPAC", "FedPAC", None),
    "fedala": ("fedavg.fedala:FedALA", "FedALA", None),
    "fedproto": ("personal.fedproto:FedProto", "FedProto", None),
    "fedfomo": ("personal.fedfomo:FedFomo", "FedFomo", None),
    "knn_per": ("fedavg.knn_per:KnnPer", "kNN-Per", None),
    "fedrod": ("fedavg.fedrod:FedRoD", "FedRoD", None),
    "fedrod_hyper": ("fedavg.fedrod:FedRoDHyper", "FedRoD (hyper)", None),
    "flix": ("flix.flix:Flix", "FLIX", 18),
    "dcgd": ("flix.flix:Dcgd", "DCGD", 19),
    "diana": ("flix.flix:Diana", "DIANA", 20),
    "flix_fedavg": ("flix.flix_fedavg:FlixFedAvg", "FLIX-FedAvg", None),
    "scafflix": ("flix.scafflix:Scafflix", "Scafflix", None),
    "fomaml": ("global_model.maml:Fomaml", "FO-MAML", 21),
    "maml": ("global_model.maml:Maml", "MAML", None),
    "reptile": ("global_model.maml:Reptile", "Reptile", 22),
    "fedmm": ("fedmm.fedmm:FedMM", "FedMM", 27),
    "fedmm_theta": ("fedmm.fedmm:FedMMTheta", "FedMM-Θ", 28),
    "sa_ssmm": ("fedmm.fedmm:SaSsmm", "SA-SSMM", 29),
    "fedmgs": ("fedmm.fedmgs:FedMGS", "FedMGS", 30),
    "fedmm_ot": ("fedmm.fedmm_ot:FedMMOT", "FedMM-OT", 36),
    "fedadam": ("fedavg.fedadam:FedAdam", "FedAdam", 40),
    "ditto": ("fedavg.ditto:Ditto", "Ditto", 8),
    "apfl": ("personal.apfl:APFL", "APFL", 9),
    "pfedme": ("personal.pfedme:PFedMe", "pFedMe", 6),
    "l2gd": ("personal.l2gd:L2GD", "L2GD", None),
    "l2sgd": ("personal.l2gd:L2SGD", "L2SGD+", None),
    "kgt": ("global_model.kgt:KGT", "K-GT", 47),
    "scaffnew": ("global_model.scaffnew:Scaffnew", "Scaffnew", 23),
    "feddyn": ("global_model.feddyn:FedDyn", "FedDyn", None),
    "fednova": ("fedavg.fednova:FedNova", "FedNova", None),
    "moon": ("fedavg.moon:Moon", "MOON", None),
    "fedpd": ("global_model.fedpd:FedPD", "FedPD", None),
    "d_admm": ("global_model.d_admm:DADMM", "ADMM", 48),
    "fedlt": ("global_model.fedlt:FedLT", "Fed-LT", None),
    "pfeddst": ("shared_body.pfeddst:PFedDST", "PFedDST", None),
    "streaming_diloco": (
        "global_model.streaming_diloco:StreamingDiLoCo",
        "Streaming DiLoCo",
        None,
    ),
}
ALGORITHMS = {name: f"mpifed.algorithms.{path}" for name, (path, *_) in METHODS.items()}
# Further classes that a name stands for, by the models that they take.
BY_MODEL = {"fedadam": "mpifed.algorithms.fedmm.fedmm_ot:FedAdamOT"}
DATASETS = {
    "synthetic": "mpifed.data.sources.synthetic:Synthetic",
    "digits": "mpifed.data.sources.mnist:Digits",
    "mnist": "mpifed.data.sources.mnist:Idx",
    "emnist": "mpifed.data.sources.mnist:Emnist",
    "cifar10": "mpifed.data.sources.cifar:Cifar10",
    "cifar100": "mpifed.data.sources.cifar:Cifar100",
    "omniglot": "mpifed.data.sources.omniglot:Omniglot",
    "leaf": "mpifed.data.sources.leaf:Leaf",
    "femnist": "mpifed.data.sources.leaf:Femnist",
    "shakespeare": "mpifed.data.sources.shakespeare:Shakespeare",
    "text": "mpifed.data.sources.language:Text",
    "arrays": "mpifed.data.from_python:Arrays",
    "npz": "mpifed.data.sources.own_files:Npz",
    "csv": "mpifed.data.sources.own_files:Csv",
    "parquet": "mpifed.data.sources.own_files:Parquet",
    "labelled_texts": "mpifed.data.sources.labelled_texts:LabelledTexts",
    "image_folder": "mpifed.data.sources.image_folder:ImageFolder",
    "federated": "mpifed.data.federated_file:FederatedFile",
    "libsvm": "mpifed.data.sources.libsvm:LibSvm",
    "sine": "mpifed.data.sources.flix:Sine",
    "tags": "mpifed.data.sources.flix:Tags",
    "tags_file": "mpifed.data.sources.flix:TagsFile",
    "dictionary": "mpifed.data.sources.fedmm:Dictionary",
    "poisson": "mpifed.data.sources.fedmm:Poisson",
    "gaussian_mixture": "mpifed.data.sources.fedmm:GaussianMixture",
    "ratings": "mpifed.data.sources.ratings:Ratings",
    "transport": "mpifed.optimal_transport.dataset:Transport",
}
# Data sets of a user's own samples, with the endings of their files; the first reads all others.
OWN_DATA: dict[str, tuple[str, ...]] = {
    "federated": (".h5", ".hdf5"),
    "csv": (".csv", ".csv.gz", ".csv.xz", ".csv.bz2"),
    "npz": (".npz",),
    "parquet": (".parquet",),
    "image_folder": (".png", ".jpg", ".jpeg"),
    "arrays": (),
    "labelled_texts": (),
}
# Those of them that read directories of such files.
IN_DIRECTORIES = ("csv", "npz", "parquet", "image_folder")
# The option that takes the file, where it is not ``path``.
FILE_OPTIONS = {"parquet": "raw"}
# The model where only such data are named.
MODELS_OF_DATA = {"labelled_texts": "bag_of_words"}
MODELS = {
    "linear": "mpifed.models.linear:linear",
    "mlp": "mpifed.models.mlp:mlp",
    "cnn": "mpifed.models.cnn:cnn",
    "mobilenet_v2": "mpifed.models.mobilenet:mobilenet_v2",
    "vgg11": "mpifed.models.vgg:vgg11",
    "resnet20": "mpifed.models.resnet:resnet20",
    "resnet18": "mpifed.models.resnet:resnet18",
    "resnet34": "mpifed.models.resnet:resnet34",
    "lstm": "mpifed.models.lstm:lstm",
    "gru": "mpifed.models.gru:gru",
    "bag_of_words": "mpifed.models.bag_of_words:bag_of_words",
    "gpt": "mpifed.models.gpt:gpt",
    "icnn": "mpifed.models.icnn:icnn",
    "none": "mpifed.models.base:none",
}
EXCHANGES = {"server": "mpifed.exchange.server:Server", "gossip": "mpifed.exchange.gossip:Gossip"}
COMPRESSORS = {
    "none": "mpifed.exchange.compression:Identity",
    "identity": "mpifed.exchange.compression:Identity",
    "rand_k": "mpifed.exchange.compression:RandK",
    "top_k": "mpifed.exchange.compression:TopK",
    "quantise": "mpifed.exchange.compression:Quantise",
    "natural": "mpifed.exchange.compression:Natural",
    "sign": "mpifed.exchange.compression:Sign",
    "bernoulli": "mpifed.exchange.compression:BernoulliGate",
    "composition": "mpifed.exchange.compression:Composition",
    "in_order": "mpifed.exchange.compression:InOrder",
}
CORRECTIONS = {
    "none": "mpifed.exchange.correction:Plain",
    "tracking": "mpifed.exchange.corrections.tracking:Tracking",
    "extra": "mpifed.exchange.corrections.extra:Extra",
    "exact_diffusion": "mpifed.exchange.corrections.diffusion:ExactDiffusion",
    "d2": "mpifed.exchange.corrections.diffusion:D2",
    "nids": "mpifed.exchange.corrections.diffusion:Nids",
    "aug_dgm": "mpifed.exchange.corrections.tracking:AugDgm",
    "push_pull": "mpifed.exchange.corrections.tracking:PushPull",
    "push_diging": "mpifed.exchange.corrections.push_sum:PushDiging",
    "heavy_ball": "mpifed.exchange.corrections.tracking:HeavyBall",
    "beer": "mpifed.exchange.corrections.compressed_tracking:Beer",
    "motef": "mpifed.exchange.corrections.compressed_tracking:Motef",
    "edm": "mpifed.exchange.corrections.diffusion:Edm",
    "led": "mpifed.exchange.corrections.diffusion:Led",
    "lt_admm": "mpifed.exchange.corrections.extra:LtAdmm",
    "dgd": "mpifed.exchange.corrections.dgd:Dgd",
    "clique_averaging": "mpifed.exchange.corrections.clique_averaging:CliqueAveraging",
    "quasi_global": "mpifed.exchange.corrections.quasi_global:QuasiGlobal",
    "decentlam": "mpifed.exchange.corrections.decentlam:DecentLaM",
    "gasloc": "mpifed.exchange.corrections.gasloc:Gasloc",
    "noloco": "mpifed.exchange.corrections.noloco:Noloco",
    "push_sum": "mpifed.exchange.corrections.push_sum:PushSum",
    "clipped_gossip": "mpifed.exchange.corrections.clipped_gossip:ClippedGossip",
    "monna": "mpifed.exchange.corrections.monna:Monna",
    "dpfl": "mpifed.exchange.corrections.collaboration:Dpfl",
    "morph": "mpifed.exchange.corrections.collaboration:Morph",
    "fomo": "mpifed.exchange.corrections.collaboration:Fomo",
    "l2c": "mpifed.exchange.corrections.collaboration:L2c",
    "relay_sum": "mpifed.exchange.corrections.relay_sum:RelaySum",
}
AGGREGATORS = {
    "mean": "mpifed.exchange.aggregation:Mean",
    "median": "mpifed.exchange.aggregation:Median",
    "trimmed_mean": "mpifed.exchange.aggregation:TrimmedMean",
    "krum": "mpifed.exchange.aggregation:Krum",
    "geometric_median": "mpifed.exchange.aggregation:GeometricMedian",
    "centred_clipping": "mpifed.exchange.aggregators.centred_clipping:CentredClipping",
    "mda": "mpifed.exchange.aggregators.minimum_diameter:MinimumDiameter",
    "monna": "mpifed.exchange.aggregators.honest_means:NearestToTrusted",
    "meamed": "mpifed.exchange.aggregators.honest_means:AroundMedian",
}
PRE_AGGREGATORS = {
    "none": "mpifed.exchange.pre_aggregation:NoPreAggregator",
    "nnm": "mpifed.exchange.pre_aggregation:NearestNeighbourMixing",
    "bucketing": "mpifed.exchange.pre_aggregation:Bucketing",
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
    "alie": "mpifed.exchange.collusion:LittleIsEnough",
    "ipm": "mpifed.exchange.collusion:InnerProduct",
    "mimic": "mpifed.exchange.collusion:Mimic",
}
SURROGATES = {
    "quadratic": "mpifed.surrogates.quadratic:quadratic",
    "poisson": "mpifed.surrogates.poisson:poisson",
    "gaussian_mixture": "mpifed.surrogates.gaussian_mixture:gaussian_mixture",
    "dictionary": "mpifed.surrogates.dictionary:dictionary",
    "remark_one": "mpifed.surrogates.remark_one:remark_one",
}
METRICS = {
    "balanced_accuracy": "mpifed.models.metrics:balanced_accuracy",
    "f1": "mpifed.models.metrics:f1",
    "auc": "mpifed.models.metrics:auc",
    "confusion": "mpifed.models.metrics:confusion",
}

TABLES = {
    "algorithm": ALGORITHMS,
    "data": DATASETS,
    "model": MODELS,
    "exchange": EXCHANGES,
    "compression": COMPRESSORS,
    "correction": CORRECTIONS,
    "aggregator": AGGREGATORS,
    "pre_aggregator": PRE_AGGREGATORS,
    "server_optimizer": SERVER_OPTIMIZERS,
    "attack": ATTACKS,
    "surrogate": SURROGATES,
    "metric": METRICS,
}

# Base classes from which the components of a kind derive, one of them where there are several, on
# the pages that own components are written with.
BASES = {
    "algorithm": ("mpifed.method:Algorithm",),
    "data": ("mpifed.dataset:Dataset",),
    "exchange": ("mpifed.method:Exchange",),
    "compression": ("mpifed.message:Compressor",),
    "correction": ("mpifed.message:Correction",),
    "aggregator": ("mpifed.message:ByCoordinates", "mpifed.message:ByProducts"),
    "pre_aggregator": ("mpifed.message:PreAggregator",),
    "server_optimizer": ("mpifed.message:ServerOptimizer",),
    "attack": ("mpifed.message:Attack",),
    "surrogate": ("mpifed.surrogate:Surrogate",),
}

# The component that a list of components of a kind stands for; they are its option ``parts``.
LISTED = {"compression": "in_order"}

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
    "pre_aggregator": "pre_aggregators",
    "server_optimizer": "server_optimizers",
    "attack": "attacks",
    "surrogate": "surrogates",
    "metric": "metrics",
}
