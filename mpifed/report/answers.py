"""What a report says first: which method is the best, and whether others differ from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpifed.report.groups import SPREADS, Estimate, Group, estimate, last_differences, partner
from mpifed.report.runs import ACCURACY, larger_is_better, measures_in
from mpifed.report.tables import SURE, common_form, measured, measures, p_text, shows_accuracies

MOST = 5  # methods that are compared in sentences
FEW = 3  # seeds; intervals over fewer are many times as wide as the deviation


def answers(groups: Sequence[Group], against: str | None = None, digits: int = 2) -> list[str]:
    """Return sentences: the best method of each data set, and how the others differ.

    They are compared with the method ``against``, or with the best one, seed by seed. Percentages
    have ``digits`` decimals, their differences two. The last sentence tells of too few seeds.
    """
    directed = [name for name in measured(groups) if not measures(groups)[name].is_own]
    columns = [ACCURACY] if shows_accuracies(groups) else directed[:1]
    sentences: list[str] = []
    counts: list[int] = []
    for column in columns:
        datas = dict.fromkeys(group.data for group in groups)
        for data in datas:
            chosen = [g for g in groups if g.data == data and g.estimate(column).count]
            if chosen:
                prefix = f"{chosen[0].words[0]}: " * (len(datas) > 1)
                of_data, seeds = _of_data(chosen, column, against, digits)
                sentences += [prefix + one for one in of_data]
                sentences += [prefix + _left_out(group) for group in chosen if group.left_out]
                counts += [seeds] * (seeds < FEW)
    if counts:
        few = "One seed" if min(counts) == 1 else "Two seeds"
        sentences.append(
            f'{few} cannot show much: mpifed sweep with "seed=range(10)" adds more, and skips what '
            "is finished in its --output."
        )
    return sentences


def meaning(groups: Sequence[Group], sentences: Sequence[str]) -> str:
    """Return what ± and p are in some sentences."""
    text = " ".join(sentences)
    p = "p is of the paired t-test over seeds, not corrected for the number of comparisons."
    return " ".join([SPREADS[groups[0].spread]] * ("±" in text) + [p] * (", p " in text))


def _of_data(
    groups: Sequence[Group], column: str, against: str | None, digits: int
) -> tuple[list[str], int]:
    """Return the sentences on one data set, and the fewest seeds that one of them rests on."""
    measure = measures(groups)[column]
    sign = 1 if larger_is_better(column) else -1
    form = ".2f" if measure.percent else common_form(_means(groups, column))
    points = " points" if measure.percent else ""
    configured = dict.fromkeys(
        name
        for group in groups
        for run in group.runs
        for name, each in measures_in(run.config).items()
        if name != column and (len(groups) == 1 or not each.is_own) and group.estimate(name).count
    )
    best = _best(groups, column)
    if len(groups) == 1:
        rounds = f" after {best.runs[0].rounds} rounds" if len(best.runs) == 1 else ""
        texts = [" ".join(_last(groups, best, name, digits)) for name in (column, *configured)]
        count = FEW if rounds else best.estimate(column).count
        return [f"{best.title}: {', '.join(texts)}{rounds}."], count
    first = []
    for each in (column, *configured):
        order = "Highest" if larger_is_better(each) else "Least"
        best_of = _best(groups, each)
        name, text = _last(groups, best_of, each, digits)
        first.append(f"{order} mean {name}: {best_of.title}, {text}.")
    reference = partner(groups, best.data, against) or best
    apart = {}
    for group in groups:
        if group is not reference:
            values = measure.factor * last_differences(group, reference, column)
            apart[group.title] = estimate(values, group.spread)
    order_of = sorted(apart, key=lambda title: -sign * np.nan_to_num(apart[title].mean))
    others = [
        _sentence(title, reference.title, apart[title], sign, f"+{form}", points)
        for title in order_of[:MOST]
    ]
    others_in_table = f"The table compares {len(order_of) - MOST} more methods."
    seeds = min((each.count for each in apart.values() if each.count), default=FEW)
    return [*first, *others, *[others_in_table] * (len(order_of) > MOST)], seeds


def _means(groups: Sequence[Group], column: str) -> list[float]:
    return [group.estimate(column, measures(groups)[column].factor).mean for group in groups]


def _best(groups: Sequence[Group], column: str) -> Group:
    """Return the group with the best mean of a column."""
    sign = 1 if larger_is_better(column) else -1
    scores = np.nan_to_num(sign * np.array(_means(groups, column)), nan=-np.inf)
    return groups[int(scores.argmax())]


def _last(groups: Sequence[Group], group: Group, column: str, digits: int) -> tuple[str, str]:
    """Return the name of a column in a sentence, and its last value with its unit."""
    measure = measures(groups)[column]
    name = measure.description.partition(",")[0]
    form = f".{digits}f" if measure.percent else common_form(_means(groups, column))
    value = group.estimate(column, measure.factor).text(form) + " %" * measure.percent
    return name if name.isupper() else name[:1].lower() + name[1:], value


def _left_out(group: Group) -> str:
    """Tell of the seeds that are part of no mean."""
    count = len(group.left_out)
    states = {"diverged" if run.diverged else "unfinished" for run in group.left_out}
    verb, them = ("is", "it") if count == 1 else ("are", "them")
    return (
        f"{count} of {count + len(group.runs)} seeds of {group.words[1]} {verb} "
        f"{' or '.join(sorted(states))}: means leave {them} out."
    )


def _sentence(name: str, other: str, apart: Estimate, sign: int, form: str, points: str) -> str:
    """How a method differs from another one."""
    if math.isnan(apart.mean):
        return f"{name} and {other} have no seed and round in common."
    text = f"{apart.text(form)}{points}".replace("-", "−")
    if math.isnan(apart.p_value):
        return f"{name} differs from {other} by {text}, with one common seed."
    p = f"p {p_text(apart)}" if p_text(apart).startswith("<") else f"p = {p_text(apart)}"
    if apart.p_value >= SURE:
        return f"No difference shown between {name} and {other}: {text}, {p}."
    return f"{name} is {'better' if sign * apart.mean > 0 else 'worse'} than {other}: {text}, {p}."
