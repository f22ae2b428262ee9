"""What the words of ``mpifed.run`` ask for, checked as far as that needs neither torch nor data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.watchdog.heartbeat import send_to_guard
from mpifed.watchdog.launcher import launched_rank


@dataclass(frozen=True)
class EarlyRequest:
    """What the words of a command ask for, read before torch is imported."""

    experiment: str | None
    overrides: dict[str, Any]
    resume: str | bool | None
    stall_limit: float | None


def early_request(options: Any) -> EarlyRequest:
    """Check what ``parser`` returns as far as that needs neither torch nor data."""
    from mpifed.config.early import check_early, written_stall_limit
    from mpifed.config.experiments import parse_overrides, split_words

    words, chosen = list(options.words), options.resume
    for name in ("output", "resume"):
        if getattr(options, name) == "":
            raise InputError(f"--{name} is empty; it must be a path")
    if isinstance(chosen, str) and _is_no_path(chosen):
        # ``--resume`` takes any next word for its PATH.
        words.append(chosen)
        chosen = True
    experiment, typed = split_words(words)
    overrides = parse_overrides(typed)
    limit = written_stall_limit(experiment, overrides)
    send_to_guard(limit=limit)  # what follows imports
    if chosen is None:
        try:
            check_early(experiment, overrides)
        except InputError as error:
            hint = _hint_at_sweep(overrides, str(error))
            if not hint:
                raise
            raise InputError(f"{error}{hint}") from error
    elif launched_rank() is None:
        _check_resumed(options.output, chosen, experiment, overrides)
    if launched_rank() is None:  # ranks may see other files, and look together
        _check_places(options, chosen)
    return EarlyRequest(experiment, overrides, chosen, limit)


def _is_no_path(word: str) -> bool:
    """Return whether a word after ``--resume`` is meant as an override or as the experiment."""
    from mpifed.config.experiments import YAML_FILES, experiment_names

    if word.endswith(YAML_FILES):
        return True
    return not Path(word).exists() and ("=" in word or word in experiment_names())


def _hint_at_sweep(overrides: dict[str, Any], refusal: str) -> str:
    """Return the end of a refusal of a value that looks like several ones."""
    for key, value in overrides.items():
        several = isinstance(value, list) or (isinstance(value, str) and value.startswith("range("))
        if several and refusal.startswith(f"{key} is "):
            return f"; for a run of each: mpifed sweep {key}=..."
    return ""


def _check_resumed(
    output: str | None, chosen: str | bool, experiment: str | None, overrides: dict[str, Any]
) -> None:
    """Refuse what does not fit the configuration of the run that is to be continued."""
    from mpifed.config.early import check_changes, check_early
    from mpifed.results.configurations import read_stored
    from mpifed.results.run_directories import check_resumed, stored_near

    if isinstance(chosen, str):
        check_resumed(Path(chosen))
    elif output is None:
        raise InputError("--resume needs --output DIR, or the path of a checkpoint")
    stored = stored_near(Path(chosen if isinstance(chosen, str) else str(output)))
    if experiment is not None or not stored.is_file():
        check_early(experiment, overrides)
    else:
        check_changes(read_stored(stored), overrides)


def _check_places(options: Any, chosen: str | bool | None) -> None:
    """Refuse what the options name and is not there, or cannot be what it is to be."""
    from mpifed.results.run_directories import check_free, check_output

    if options.output is not None:
        check_output(Path(options.output))
        if chosen is None and not options.restart:
            check_free(Path(options.output))
    if options.on_round is not None:
        _check_function(options.on_round)


def _check_function(name: str) -> None:
    """Refuse a name of no function, without importing the module of one."""
    if ":" in name:
        from mpifed.components.absent import refuse_absent

        refuse_absent(name, "on_round")
        return
    from mpifed.training.callbacks import callback

    callback(name)
