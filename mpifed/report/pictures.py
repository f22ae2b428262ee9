"""How pictures are made: style, size, font, texts and formats of their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#595959"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": "large",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 24,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "lines.markersize": 4,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
    "svg.hashsalt": "mpifed",  # the same bytes for the same numbers
}
SIZE = (6.6, 4.2)  # inches, without the names in the right margin


@dataclass(frozen=True)
class Pictures:
    """How pictures are made."""

    formats: tuple[str, ...] = ("png",)
    size: tuple[float, float] = SIZE
    font: str | None = None
    font_size: float = 11.0
    titles: Mapping[str, str] = field(default_factory=dict)
    x_labels: Mapping[str, str] = field(default_factory=dict)

    def style(self) -> Any:
        """Return what matplotlib is told."""
        font = {} if self.font is None else {"font.family": [self.font, "sans-serif"]}
        return STYLE | {"font.size": self.font_size} | font


def save(
    figure: Figure, output: Path, name: str, made: Pictures, dots: float | None = None
) -> list[Path]:
    """Write a figure in each format."""
    files = [output / f"{name}.{ending}" for ending in made.formats]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal numbers, equal files
    for path, ending in zip(files, made.formats, strict=True):
        try:
            figure.savefig(path, metadata=dates.get(ending), dpi=dots or "figure")
        except OSError as error:
            raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return files
