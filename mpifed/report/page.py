"""The page of a report: tables, curves, mixtures, settings, logs and commands, by ``page.html``.

The template escapes all text. The page needs no other file: pictures are SVG or data URLs in it,
and its style and script are written into it. ``report.__main__`` writes the text to
``report.html``.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from mpifed.errors import InputError, printable_lines
from mpifed.io.text import is_count, is_number, read_text
from mpifed.report import tables
from mpifed.report.answers import answers, meaning
from mpifed.report.charts import BITS, CLOCK, ROUNDS, SECONDS, Chart, look_by_method
from mpifed.report.drawing import Pictures, svg_panels, swatch
from mpifed.report.groups import Group, leaves
from mpifed.report.names import NAMES, in_words, key_in_words, method_title
from mpifed.report.runs import ACCURACY, DECILE, Run
from mpifed.report.tables import NONE, Cell, Code, Table
from mpifed.results.results import read_clients, read_summary
from topologies.analysis.plots import drawing

X_NAMES = {ROUNDS: "rounds", BITS: "bits sent", SECONDS: "wall time", CLOCK: "simulated time"}
APART = ("difference", "clients", "consensus-distance", "graph")  # charts in sections of their own
PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint")
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
HEAT = 200  # clients in a heat map, at most
LONGEST = 400  # characters of a line of a log
LARGEST_LOG = 16 << 20  # bytes
ON_PAGE = Pictures(size=(4.1, 2.8), font_size=11, longest=14)


def page(
    groups: Sequence[Group],
    notes: Sequence[str],
    data_charts: Mapping[str, Sequence[Chart]],
    against: str | None = None,
    words: Sequence[str] = (),
) -> str:
    """Return the report of groups, with their charts, as a document that needs no other file."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    environment.filters["marked"] = _marked
    environment.tests["warning"] = _warns
    look_of = look_by_method(groups)
    numbers = {method: index for index, method in enumerate(look_of)}
    with drawing(ON_PAGE.style()):
        swatches = "".join(swatch(look, f"k{numbers[method]}") for method, look in look_of.items())
        drawn = {
            in_words(data): [
                (c, svg_panels(c, ON_PAGE, numbers, f"d{number}-{c.name}-")) for c in charts
            ]
            for number, (data, charts) in enumerate(data_charts.items())
        }
    runs = [run for group in groups for run in group.runs + group.left_out]
    charts = [
        chart for of_data in data_charts.values() for chart in of_data if chart.column not in APART
    ]
    axes = {chart.x for chart in charts}
    scores = [ACCURACY, DECILE, "train_loss", *tables.measured(groups)]
    scores = [column for column in scores if any(g.estimate(column).count for g in groups)]
    summaries = {run.path: _summary(run) for run in runs}
    logs = {run.path: _log(run.path / "log.txt") for run in runs}
    differing, shared, usual = _settings(groups)
    sentences = answers(groups, against)
    return environment.get_template("page.html").render(
        title=_title(groups),
        answers=sentences,
        meaning=meaning(groups, sentences),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        groups=groups,
        methods={group.words[1]: group.method for group in groups},
        numbers=numbers,
        swatches=swatches,
        drawn=drawn,
        wide=_width(drawn),
        curves=list(dict.fromkeys(chart.column for chart in charts)),
        axes={x: name for x, name in X_NAMES.items() if x in axes},
        results=tables.results(groups, scores, digits=2).condensed(),
        compared=_compared(groups, against).condensed(),
        quantiles=_quantiles(groups).condensed(),
        worst=tables.worst_clients(groups).condensed(),
        clients=_by_client(groups),
        heat_maps=[heat_map for heat_map in map(_heat_map, groups) if heat_map],
        scale=_pixels(np.linspace(0, 1, 32)[None]),
        consensus=tables.consensus(groups).condensed(),
        confusions=tables.confusions(groups),
        differing=differing,
        shared=shared,
        usual=usual,
        times=_times(groups, summaries).condensed(),
        notes=notes,
        warned=_warned(logs),
        logs=logs,
        commands={run.path: _commands(run, summaries[run.path].get("ranks")) for run in runs},
        configurations={run.path: _as_yaml(run.config) for run in runs},
        words=shlex.join(words),
    )


def _width(drawn: Mapping[str, Sequence[tuple[Chart, Sequence[str]]]]) -> int:
    """Return the width of the widest panel of the page in pixels, where letters are not smaller."""
    panels = [panel for of_data in drawn.values() for _, panels in of_data for panel in panels]
    boxes = (re.search(r'viewBox="0 0 ([\d.]+) ', panel) for panel in panels)
    return math.ceil(max((float(box[1]) for box in boxes if box), default=400))


def _marked(cell: Cell) -> Markup:
    """Return a cell of a table as HTML."""
    marks = ("<strong>{}</strong>", "<code>{}</code>")
    return Markup(tables.rendered(cell, lambda text: str(escape(text)), *marks))


def _printable(value: Any) -> Any:
    """Return what the template shows with the lines of a text kept, and HTML as it is."""
    return value if isinstance(value, Markup) else printable_lines(str(value))


def _title(groups: Sequence[Group]) -> str:
    methods = list(dict.fromkeys(method_title(group.runs[0].config) for group in groups))
    datas = list(dict.fromkeys(in_words(group.data) for group in groups))
    listed = ", ".join(methods[:4]) + f" and {len(methods) - 4} more" * (len(methods) > 4)
    return f"{listed} on {datas[0] if len(datas) == 1 else f'{len(datas)} data sets'}"


def _compared(groups: Sequence[Group], against: str | None) -> Table:
    """The differences from a method, else from the most accurate one."""
    means = {group.method: group.estimate(ACCURACY).mean for group in groups}
    accuracies = {method: mean for method, mean in means.items() if mean == mean}
    if len(accuracies) < 2:
        return Table([], [])
    return tables.comparison(groups, against or max(accuracies, key=accuracies.__getitem__), None)


def _quantiles(groups: Sequence[Group]) -> Table:
    """The quantiles of the clients' test accuracies."""
    rows = []
    for group in groups:
        accuracies = group.client_accuracies()
        if accuracies is not None:
            scores = [*np.quantile(accuracies, QUANTILES), accuracies.std()]
            rows.append([*group.words, str(len(accuracies)), *(f"{100 * q:.2f}" for q in scores)])
    names = ["Least", *(f"{100 * q:g}\N{NO-BREAK SPACE}%" for q in QUANTILES[1:-1]), "Largest"]
    caption = "Test accuracies of the clients in per cent, clients of all seeds together."
    header = ["Data", "Method", "Clients × seeds", *names, "Standard deviation"]
    return Table(header, rows, 2, caption)


def _by_client(groups: Sequence[Group]) -> Table:
    """The scores of the clients, where they have names and are not too many to read."""
    paths = [run.path / "clients.h5" for group in groups for run in group.runs if run.finished]
    if not any("client_name" in read_clients(path).results for path in paths):
        return Table([], [])
    table = tables.by_client(groups)
    return table if len(table.rows) <= HEAT else Table([], [])


def _heat_map(group: Group) -> dict[str, Any] | None:
    """The mixtures of the clients of a group's first run, as a picture."""
    run = group.runs[0]
    results = read_clients(run.path / "clients.h5").results if run.finished else {}
    mixture = results.get("mixture")
    if mixture is None or mixture.ndim != 2 or mixture.shape[1] < 2 or not len(mixture):
        return None
    count, components = mixture.shape
    largest = mixture.argmax(axis=1)
    order = np.lexsort((-mixture[np.arange(count), largest], largest))
    caption = f"{', '.join(group.words[::-1])}, seed {run.seed}: {count} clients, "
    caption += f"{components} components"
    if count > HEAT:
        order = order[np.linspace(0, count - 1, HEAT).astype(int)]
        caption += f"; {HEAT} of the clients, evenly chosen"
    weights = mixture[order].T.astype(float)  # (components, clients)
    return {
        "caption": caption,
        "image": _pixels(weights),
        "weights": np.round(100 * np.nan_to_num(weights)).astype(int).tolist(),
        "clients": results["client_id"][order].tolist(),
        "counts": np.bincount(largest, minlength=components).tolist(),
    }


def _pixels(weights: np.ndarray) -> str:
    """Weights as a picture in a URL, a pixel each: the darker, the larger."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, weights, vmin=0, vmax=1, cmap="Blues", format="png", origin="upper")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _settings(groups: Sequence[Group]) -> tuple[Table, Table, Table]:
    """The settings in which methods differ, a column for each, and those that all share.

    The third has those that nobody has set: they have their defaults wherever there are some.
    """
    flat = [[leaves(run.config) for run in group.runs] for group in groups]
    usual_values = _defaults([run.config for group in groups for run in group.runs])
    apart, alike, usual = [], [], []
    for key in dict.fromkeys(key for runs in flat for settings in runs for key in settings):
        values = [
            list(dict.fromkeys(_value(settings.get(key)) for settings in runs)) for runs in flat
        ]
        name: Cell = (f"{key_in_words(key)} ", Code(key))
        texts = list(map(", ".join, values))
        present = {_value(value) for value in usual_values.get(key, {"null"})} | {NONE}
        if set().union(*values) <= present:
            usual.append([name, ", ".join(t for t in dict.fromkeys(texts) if t != NONE)])
        elif len(set(texts)) > 1:
            apart.append([name, *texts])
        else:
            alike.append([name, texts[0]])
    methods = [group.words[1] for group in groups]
    header = ["Setting", "Value"]
    return Table(["Setting", *methods], apart, texts=99), Table(header, alike), Table(header, usual)


def _defaults(configs: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the defaults of the settings of some runs by key, without those of users' components.

    Components may have different defaults for a key of one name.
    """
    # These import torch.
    from mpifed.components.registry import with_defaults
    from mpifed.components.tables import TABLES
    from mpifed.config.configuration import to_mapping, with_all_options

    values: dict[str, set[str]] = {}
    skeletons: list[dict[str, Any]] = [{}]
    for config in configs:
        for key, section in config.items():
            names = _without_options(section)
            inner = [part for part, value in names.items() if isinstance(value, dict)]
            alone = {key: {part: names[part] for part in names.keys() - inner}}
            skeletons += [each for each in ({key: names}, alone) if each not in skeletons]
    for skeleton in skeletons:
        named = leaves(skeleton)
        try:
            completed = to_mapping(with_all_options(skeleton))
        except InputError:  # data that are not here, or a name of another version
            completed = {k: with_defaults(k, part) for k, part in skeleton.items() if k in TABLES}
        for key, text in leaves(completed).items():
            if key not in named and (not skeleton or key.partition(".")[0] in skeleton):
                values.setdefault(key, set()).add(text)
    return values


def _without_options(section: Any) -> dict[str, Any]:
    """Return a section with its shipped components alone, each with what has no default."""
    if not isinstance(section, dict) or ":" in str(section.get("name")):
        return {}
    inner = {key: _without_options(value) for key, value in section.items()}
    required = {"name", *_required(str(section["name"]))} if "name" in section else set()
    needed = {key: value for key, value in section.items() if key in required}
    return {**{key: value for key, value in inner.items() if value}, **needed}


def _required(name: str) -> list[str]:
    """Return the options without a default of what is called ``name``."""
    from mpifed.config.listing import listed_records  # imports torch

    with contextlib.suppress(InputError):  # of another version
        options = [option for each in listed_records(name) for option in each.get("options", ())]
        return [option["name"] for option in options if "default" not in option]
    return []


def _value(value: str | None) -> str:
    return NONE if value is None else "none" if value == "null" else NAMES.get(value, value)


def _summary(run: Run) -> dict[str, Any]:
    path = run.path / "summary.json"
    return read_summary(path) if path.exists() else {}


def _times(groups: Sequence[Group], summaries: Mapping[Path, dict[str, Any]]) -> Table:
    """Where the wall time went, means over seeds."""
    rows = []
    for group in groups:
        run_summaries = [summaries[run.path] for run in group.runs]
        spent = [one["seconds"] for one in run_summaries if one.get("seconds")]
        if spent:
            phases = [float(np.mean([s.get(p, 0.0) for s in spent])) for p in ("total", *PHASES)]
            remainder = max(0.0, phases[0] - sum(phases[1:]))
            ranks = sorted({one["ranks"] for one in run_summaries if is_count(one.get("ranks"))})
            memory = [one.get("peak_memory_bytes") for one in run_summaries]
            largest = max((value for value in memory if is_number(value)), default=0)
            cells = [f"{seconds:.2f}" for seconds in (*phases, remainder)]
            memory_text = f"{largest / 2**20:.0f}" if largest else NONE
            rows.append([*group.words, ", ".join(map(str, ranks)) or NONE, *cells, memory_text])
    caption = (
        "Where the time went: wall time in seconds, means over the seeds that are finished. Memory "
        "is the largest of a rank."
    )
    header = ["Data", "Method", "Ranks", "total", *PHASES, "rest", "Memory (MiB)"]
    return Table(header, rows, 2, caption)


def _log(path: Path) -> list[str]:
    try:
        return [line[:LONGEST] for line in read_text(path, LARGEST_LOG).splitlines()]
    except InputError:  # a log is no result: a run without one is shown all the same
        return []


def _warns(line: str) -> bool:
    return line.lower().startswith("warning")


def _warned(logs: Mapping[Path, Sequence[str]]) -> dict[str, list[Path]]:
    """Return the warnings of the runs, each once, with the runs that have it."""
    paths_of: dict[str, list[Path]] = {}
    for path, lines in logs.items():
        for line in filter(_warns, lines):
            paths_of.setdefault(line, []).append(path)
    return paths_of


def _commands(run: Run, ranks: object) -> list[str]:
    """Return the commands that repeat a run, and that verify it."""
    mpi = f"mpirun -n {ranks} " if is_count(ranks) and ranks != 1 else ""
    config, again = shlex.quote(str(run.path / "config.yaml")), shlex.quote(f"{run.path}-again")
    verified = f"{mpi}python -m mpifed.verify {shlex.quote(str(run.path))}"
    return [f"{mpi}python -m mpifed.run {config} --output {again}"] + [verified] * run.finished


def _as_yaml(config: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(config, default=str))
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110,
                          allow_unicode=True)  # fmt: skip
