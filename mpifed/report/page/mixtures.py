"""What clients have: quantiles of their accuracies, and their mixtures as a heat map."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence

import numpy as np

from mpifed.report.charts import Drawn
from mpifed.report.groups import Group
from mpifed.report.page.markup import table, text
from mpifed.report.page.results import named
from mpifed.report.page.runs import Details

# Clients in a heat map, at most.
SHOWN = 200

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
DARKEST = np.array([8.0, 48.0, 107.0])
MIDDLE = np.array([107.0, 174.0, 214.0])


def quantiles(groups: Sequence[Group], how: Drawn) -> str:
    """Return the table of quantiles of the clients' test accuracies; empty without any."""
    rows = []
    for group in groups:
        accuracies = group.client_accuracies()
        if accuracies is not None:
            found = 100 * np.quantile(accuracies, QUANTILES)
            cells = [named(group, how), str(len(accuracies)), *(f"{one:.1f}" for one in found)]
            rows.append([*cells, f"{100 * accuracies.std():.1f}"])
    names = ["least", *(f"{100 * q:g} %" for q in QUANTILES[1:-1]), "largest"]
    header = ["Method", "Clients × seeds", *names, "Standard deviation"]
    caption = (
        "Quantiles of the clients' test accuracies in per cent, clients of all seeds together."
    )
    return table(header, rows, 1, caption) if rows else ""


def heat_map(group: Group, found: Details, how: Drawn) -> str:
    """Return the mixtures of one run's clients as a picture."""
    mixture = found.mixture
    if mixture is None:
        return ""
    count, components = mixture.shape
    largest = mixture.argmax(axis=1)
    order = np.lexsort((-mixture[np.arange(count), largest], largest))
    if count > SHOWN:
        order = order[np.linspace(0, count - 1, SHOWN).astype(int)]
    shown = mixture[order].T  # (components, clients)
    name = how.name(group)
    seed = f", seed {found.seed}" if len(group.runs) > 1 else ""
    about = f"{name}{seed}: {count} clients, {components} components"
    about += f"; {SHOWN} of the clients, evenly chosen" if count > SHOWN else ""
    data = json.dumps(np.round(100 * shown).astype(int).tolist(), separators=(",", ":"))
    ids = json.dumps(found.clients[order].tolist(), separators=(",", ":"))
    labels = "".join(f"<span>{k + 1}</span>" for k in range(components))
    return (
        f'<figure class="heat"><figcaption>{text(about)}</figcaption>'
        f'<div class="map"><div class="rows" aria-hidden="true">{labels}</div>'
        f'<img src="{_picture(shown)}" alt="{text(_in_words(mixture, name))}" tabindex="0" '
        f"data-values='{data}' data-clients='{ids}' "
        f'style="height:{22 * components}px"></div></figure>'
    )


def legend() -> str:
    """Return the scale of the heat maps' colours."""
    return (
        '<p class="key">Rows are components, columns are clients, ordered by their largest '
        "component. Weight: 0 "
        f'<img src="{_picture(np.linspace(0, 1, 32)[None])}" alt="from white to dark blue"> 1</p>'
    )


def _in_words(mixture: np.ndarray, name: str) -> str:
    counts = np.bincount(mixture.argmax(axis=1), minlength=mixture.shape[1])
    parts = [f"component {k + 1} is the largest of {n} clients" for k, n in enumerate(counts[:8])]
    mean = f"mean weight of the largest {mixture.max(1).mean():.2f}"
    return f"Mixtures of {name}: {', '.join(parts)}; {mean}"


def _picture(weights: np.ndarray) -> str:
    """The weights as a picture in a URL, a pixel each: the darker, the larger."""
    from PIL import Image

    share = np.clip(np.nan_to_num(weights), 0, 1)[..., None]
    upper = MIDDLE + (DARKEST - MIDDLE) * (2 * share - 1)
    pixels = np.where(share < 0.5, 255 + (MIDDLE - 255) * 2 * share, upper)
    file = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8), "RGB").save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
