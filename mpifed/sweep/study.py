"""Studies: a sweep whose next run Optuna chooses from the scores of those before."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpifed.command import say
from mpifed.config import configuration as config
from mpifed.errors import EXIT_FINISHED, EXIT_STOPPED, InputError, complain, in_words
from mpifed.io.yaml_files import as_text
from mpifed.mpi.communicator import Alone
from mpifed.random import key
from mpifed.results.results import larger_is_better, read_metrics
from mpifed.sweep.plan import (
    Planned,
    check_data,
    planned,
    run_words,
    split_axes,
    split_linked,
    write_index,
    written_out,
)
from mpifed.sweep.processes import Going, Sweep, diverged
from mpifed.sweep.ranges import Range, split_ranges
from topologies.job_environment import outside_step

# A trial is not pruned in the first rounds, this share of all.
WARMUP = 0.25


@dataclass(frozen=True)
class Choice:
    """A list of values."""

    values: Sequence[Any]

    @property
    def checked(self) -> tuple[Any, ...]:
        """The values whose configurations are checked before any run: all."""
        return tuple(self.values)

    def value(self, drawn: str) -> Any:
        """Return the value that Optuna has as text."""
        return {as_text(each): each for each in self.values}[drawn]


@dataclass(frozen=True)
class Space:
    """Where the values of trials may lie, by key, and what all trials share."""

    experiment: str | None
    mapping: Mapping[str, Any]
    fixed: dict[str, Any]
    ranges: Mapping[str, Range | Choice]
    written: Mapping[str, str]
    output: Path
    ranks: int

    def values_of(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial from the parameters that Optuna has."""
        return {name: where.value(parameters[name]) for name, where in self.ranges.items()}

    def directory(self, number: int) -> Path:
        """Return the run directory of a trial."""
        return self.output / f"trial-{number:04}"

    def planned(self, number: int, values: dict[str, Any]) -> Planned:
        """Plan and check the run of a trial."""
        return planned(
            self.directory(number), self.mapping, self.fixed | values, values, self.ranks
        )

    def corners(self) -> list[dict[str, Any]]:
        """Return values whose configurations are checked before any run, the lowest first."""
        ends = {name: where.checked for name, where in self.ranges.items()}
        lowest = {name: values[0] for name, values in ends.items()}
        highest = {name: values[-1] for name, values in ends.items()}
        single = [lowest | {name: value} for name, values in ends.items() for value in values]
        return [lowest, highest, *single]


def space_of(experiment: str | None, words: Sequence[str], output: Path, ranks: int) -> Space:
    """Read and check what trials may differ in."""
    plain, links = split_linked(words)
    if links:
        raise InputError(
            f"{next(iter(links))} names another run, but trials of --optuna start afresh; leave "
            "the braces or --optuna out"
        )
    ranges, others = split_ranges(plain)
    values = config.parse_overrides([written_out(word) for word in others])
    mapping = config.read_experiment(experiment, values)
    axes, fixed = split_axes(values, mapping)
    if "seed" in axes or "seed" in ranges:
        raise InputError(
            "seed is to be searched, which would find the luckiest; with --optuna it must be one "
            "number"
        )
    if not ranges and not axes:
        raise InputError(
            "--optuna has nothing to search; give a range, as local.lr=log(1e-3,1), or a list"
        )
    searched: dict[str, Range | Choice] = {**ranges}
    searched.update((name, Choice(values)) for name, values in axes.items())
    texts = dict(word.split("=", 1) for word in plain)
    written = {name: texts[name] for name in searched}
    return Space(experiment, mapping, fixed, searched, written, output, ranks)


@dataclass(frozen=True)
class Search:
    """What a study is about: its score, its seed, and from which round on trials are pruned."""

    metric: str
    seed: int
    warmup: int


def search_of(space: Space, metric: str | None) -> Search:
    """Check the configurations of a study, its data and its metric."""
    if find_spec("optuna") is None:
        raise InputError(
            "--optuna needs the package optuna: python -m pip install 'mpifed[optuna]'"
        )
    from mpifed.training.build import make
    from mpifed.training.evaluation import columns_of
    from mpifed.training.stopping import check_column, default_column

    corners = [
        planned(space.output / "trial", space.mapping, space.fixed | values, values, space.ranks)
        for values in space.corners()
    ]
    mapping = config.apply_overrides(space.mapping, corners[0].overrides)
    configuration = config.resolve(mapping, 1)
    setup = make(configuration, Alone(), configuration.rounds, None)
    metric = metric or default_column(setup)
    check_column("--metric", metric, setup, columns_of(setup))
    check_data(corners)
    return Search(metric, configuration.seed, int(WARMUP * configuration.rounds))


def open_study(space: Space, search: Search) -> Any:
    """Return the study in the directory of the sweep, which is made if there is none."""
    import optuna

    from mpifed.sweep.pruning import JOURNAL, STUDY, storage_of

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = {"metric": search.metric, "seed": search.seed, **space.written}
    journal = space.output / JOURNAL
    space.output.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        study = optuna.create_study(
            storage=storage_of(journal),
            study_name=STUDY,
            load_if_exists=True,
            direction="maximize" if larger_is_better(search.metric) else "minimize",
        )
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"'{journal}' is not a study of Optuna ({in_words(error)}); choose another --output"
        ) from error
    earlier = study.user_attrs.get("settings", settings)
    for name in [*settings, *earlier]:
        if settings.get(name) != earlier.get(name):
            raise InputError(
                f"'{space.output}' holds a study with {name}={earlier.get(name)}, and {name} is "
                f"{settings.get(name)} now; choose another --output"
            )
    study.set_user_attr("settings", settings)
    study.set_user_attr("warmup", search.warmup)
    return study


def distributions_of(space: Space) -> dict[str, Any]:
    """Return the ranges as Optuna has them."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    distributions: dict[str, Any] = {}
    for name, where in space.ranges.items():
        if isinstance(where, Choice):
            distributions[name] = CategoricalDistribution([as_text(each) for each in where.values])
        elif where.integer:
            distributions[name] = IntDistribution(int(where.low), int(where.high), where.log)
        else:
            distributions[name] = FloatDistribution(where.low, where.high, where.log)
    return distributions


class Study(Sweep):
    """Trials, each planned when it can start."""

    def __init__(
        self,
        space: Space,
        search: Search,
        trials: int,
        command: Callable[[Planned], list[str]],
        jobs: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.space, self.search, self.command = space, search, command
        self.study = open_study(space, search)
        self.distributions = distributions_of(space)
        self.first: dict[str, int] = {}
        """The number of the first trial with these values: the others are not run."""
        earlier = self.study.trials
        super().__init__([], [], jobs, environment, max(trials, len(earlier)))
        for trial in earlier:
            self._add(trial, trial.state.name)

    def run(self) -> int:
        """Carry out the trials that are not finished, and name the best; return the exit code."""
        code = super().run()
        scored = [trial for trial in self.study.trials if trial.state.name == "COMPLETE"]
        if code != EXIT_STOPPED and scored:
            values = self.runs[self.study.best_trial.number].chosen
            best = self.runs[self.first[as_text(values)]]
            words = " ".join(f"{name}={as_text(value)}" for name, value in values.items())
            score = f"{self.search.metric} {self.study.best_value:.4f}"
            say(f"best: {best.directory}, {score}, {words}")
        return code

    def _next(self) -> int | None:
        number = super()._next()
        while number is None and len(self.runs) < self.total:
            self._add(self._ask(), "RUNNING")
            number = super()._next()
        return number

    def _to_come(self) -> int:
        return len(self.waiting) + self.total - len(self.runs)

    def _ask(self) -> Any:
        """Return a new trial, whose values follow from the seed, its number and those before."""
        from optuna.samplers import TPESampler

        seed = key(self.search.seed, "optuna", len(self.runs)) % 2**32
        self.study.sampler = TPESampler(seed=seed)
        return self.study.ask(self.distributions)

    def _add(self, trial: Any, state: str) -> None:
        """Plan a trial, which waits for its run unless it has an end."""
        number, values = trial.number, self.space.values_of(trial.params)
        try:
            run = self.space.planned(number, values)
        except InputError as error:  # of values together: each was checked before
            if state not in ("RUNNING", "FAIL"):
                raise
            run = Planned(self.space.directory(number), {}, None, (), values)
            complain(run.directory.name, str(error))
            self.failed.add(number)
            if state == "RUNNING":
                self.study.tell(number, state=_state("FAIL"))
                state = "FAIL"
        self.runs.append(run)
        self.commands.append(self.command(run))
        if state == "FAIL":
            return
        first = self.first.setdefault(as_text(values), number)
        write_index([self.runs[number] for number in sorted(self.first.values())])
        if state != "RUNNING":
            return
        if first != number:
            self._say(number, f"has the values of {self.runs[first].directory.name}")
            self._tell(first)
        elif run.finished():  # and the sweep ended before it took the score
            self._tell(number)
        else:
            self.waiting.append(number)

    def _report(self, one: Going, code: int) -> None:
        super()._report(one, code)
        self._tell(one.number)

    def _outcome(self, number: int, took: str) -> str:
        pruned, score = self._pruned_at(number), self._score(number)
        how = f"finished in {took}" if pruned is None else f"pruned at round {pruned} after {took}"
        return how if score is None else f"{how}, {self.search.metric} {score:.4f}"

    def _environment_of(self, number: int) -> Mapping[str, str]:
        from mpifed.sweep.pruning import JOURNAL, TRIAL_VARIABLE

        journal = (self.space.output / JOURNAL).absolute()
        environment = os.environ if self.environment is None else self.environment
        return {**environment, TRIAL_VARIABLE: f"{journal}#{number}"}

    def _pruned_at(self, number: int) -> int | None:
        from mpifed.sweep.pruning import PRUNED_AT

        return self.study.trials[number].user_attrs.get(PRUNED_AT)

    def _score(self, number: int) -> float | None:
        """Return the score of the last round that has one."""
        metrics = read_metrics(self.runs[number].directory / "metrics.csv")
        texts = list(filter(None, metrics.texts(self.search.metric)))
        score = float(texts[-1]) if texts else math.nan
        return None if math.isnan(score) else score

    def _tell(self, first: int) -> None:
        """Give Optuna the end of a run, if it has one: for each trial with its values."""
        run, score = self.runs[first], None
        if run.finished():
            score = self._score(first) if self._pruned_at(first) is None else None
        elif diverged(run):
            self.failed.discard(first)
        else:
            return
        for trial in self.study.trials:
            same = trial.number < len(self.runs) and self.runs[trial.number].chosen == run.chosen
            if same and trial.state.name == "RUNNING":
                state = _state("PRUNED" if score is None else "COMPLETE")
                self.study.tell(trial.number, score, state)


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def search(
    experiment: str | None, words: Sequence[str], output: Path, options: Any, launcher: list[str]
) -> int:
    """Search as the options of the command say; return the exit code."""
    ranks = options.ranks
    space = space_of(experiment, words, output, ranks or 1)
    target = search_of(space, options.metric)

    def command(run: Planned) -> list[str]:
        prunes = [] if options.no_pruning else ["--on-round", "mpifed.sweep.pruning:report"]
        return [*launcher, *run_words(experiment, run, ranks), *prunes]

    if options.dry_run:
        named = [f"{name}={text}" for name, text in space.written.items()]
        fixed = Planned(space.output / "trial-NUMBER", space.fixed, None)
        print(f"{options.optuna} trials, {target.metric}, {' '.join(named)}:")
        print(shlex.join([*command(fixed), *named]))
        return EXIT_FINISHED
    if target.metric.startswith(("test_", "central_test")):
        complain(
            "mpifed.sweep",
            f"warning: the best {target.metric} of several runs is higher than on new data; a "
            "validation score does not use the test samples",
        )
    environment = outside_step() if ranks is not None else None
    return Study(space, target, options.optuna, command, options.jobs, environment).run()
