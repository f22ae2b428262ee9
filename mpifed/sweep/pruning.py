"""What a run that is a trial reports after each evaluated round, and whether it goes on."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any

from mpifed.training.callbacks import RecordedRound

# Says which trial of which study a run is: its journal, "#" and the trial's number.
TRIAL_VARIABLE = "MPIFED_TRIAL"

# The file of a study, in the directory of the sweep, and the name of the study in it.
JOURNAL, STUDY = "study.journal", "mpifed"

# Trials that are complete before one is pruned.
COMPLETE_FIRST = 5

# A trial with this attribute is pruned; it is the round.
PRUNED_AT = "pruned_at"


def storage_of(journal: Path) -> Any:
    """Return the storage of a study in its file."""
    from optuna.storages import JournalStorage  # here, since an installation may be without
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(journal)))


def median_pruner(warmup: int) -> Any:
    """Return the pruner, which does nothing before round ``warmup``."""
    from optuna.pruners import MedianPruner

    return MedianPruner(COMPLETE_FIRST, n_warmup_steps=warmup)


@functools.cache
def _trial(journal: str, number: int) -> tuple[Any, Any]:
    """Return the study and the trial of its number."""
    import optuna

    storage = storage_of(Path(journal))
    # A sampler that draws nothing together: the values are drawn already.
    sampler = optuna.samplers.RandomSampler()
    study = optuna.load_study(study_name=STUDY, storage=storage, sampler=sampler)
    study.pruner = median_pruner(study.user_attrs["warmup"])
    study_id = storage.get_study_id_from_name(STUDY)
    identifier = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    return study, optuna.trial.Trial(study, identifier)


def report(recorded: RecordedRound) -> bool:
    """Report the score of a round; return True, which stops the run, where it is pruned."""
    journal, _, number = os.environ[TRIAL_VARIABLE].rpartition("#")
    study, trial = _trial(journal, int(number))
    score = recorded.row[study.user_attrs["settings"]["metric"]]
    if math.isnan(score):  # the round has none
        return False
    # A resumed run records again what came after its checkpoint.
    if recorded.round not in study.trials[int(number)].intermediate_values:
        trial.report(score, recorded.round)
    if recorded.last or not trial.should_prune():
        return False
    trial.set_user_attr(PRUNED_AT, recorded.round)
    return True
