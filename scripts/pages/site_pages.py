"""Pages of the site that are made of other files: a hook of mkdocs.

The start is README.md; a page of the reference is made for each public module, by mkdocstrings,
which reads the code without importing it; notebooks become pages with the outputs that they keep.
In ``nav`` of mkdocs.yml, a folder (``reference/``) stands for all pages in it.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]

PUBLIC = (
    *(
        "mpifed.api",
        "mpifed.training.trained",
        "mpifed.training.trained",
        "mpifed.state",
        "mpifed.errors",
    ),
    *("mpifed.dataset", "mpifed.data.from_python", "mpifed.data.base", "mpifed.federation.clients"),
    *(
        "mpifed.method",
        "mpifed.model",
        "mpifed.models.base",
        "mpifed.models.loss",
        "mpifed.models.losses",
        "mpifed.io.weights",
    ),
    *("mpifed.local.options", "mpifed.local.solver", "mpifed.local.adjustments"),
    *("mpifed.local.objective", "mpifed.exchange.base", "mpifed.exchange.aggregation"),
    *("mpifed.exchange.attacks", "mpifed.exchange.compression"),
    *("mpifed.exchange.correction", "mpifed.message", "mpifed.surrogate"),
)
"""Modules that a user's program or component imports; docs/stability.md promises them."""

WHOLE = ("mpifed.algorithms",)
"""Packages of which every module has a page."""

PACKAGE = """# mpifed

| | |
| --- | --- |
| `mpifed.run` | [mpifed.api.run][] runs an experiment |
| `mpifed.load` | [mpifed.training.trained.load][] loads what was trained |
| `mpifed.arrays` | [mpifed.data.from_python.arrays][] makes data of arrays |
| `mpifed run`, ... | [commands](../running.md) |

`import mpifed` is quick: torch is imported when one of them is first used.
"""
"""In place of what would be read from the package, whose function ``run`` has a module's name."""

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "AGENTS.md": "programs.md",
    "RELEASE.md": "releases.md",
}
"""Pages that are beside docs/, and their names on the site."""


def module_path(name: str) -> Path:
    """Return the file of a module."""
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exported_by(package: str) -> list[str]:
    """Return the modules from which a package takes what it exports."""
    tree = ast.parse(module_path(package).read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return sorted(
        {node.module or "" for node in imports if (node.module or "").startswith(package)}
    )


def public_modules() -> list[str]:
    """Return the modules that have a page, in the order of the navigation."""
    found = list(PUBLIC)
    for package in WHOLE:
        for path in sorted(module_path(package).parent.rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                found.append(".".join(parts))
    return [*dict.fromkeys([*found, "topologies", *exported_by("topologies")])]


def reference() -> dict[str, str]:
    """Return the pages of the reference: their names and texts."""
    pages = {f"reference/{name}.md": f"# {name}\n\n::: {name}\n" for name in public_modules()}
    return {"reference/mpifed.md": PACKAGE, **pages}


def with_formulas(text: str) -> str:
    """Return Markdown with its LaTeX formulas as MathML, which browsers draw themselves."""
    shown = re.sub(
        r"\$\$(.+?)\$\$", lambda found: convert(found[1], display="block"), text, flags=re.DOTALL
    )
    return re.sub(r"\$([^$]+)\$", lambda found: convert(found[1]), shown)


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown, with the texts and pictures that it keeps."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        markdown = cell["cell_type"] == "markdown"
        parts.append(with_formulas(text) if markdown else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```")
            elif "image/png" in output.get("data", {}):
                picture = "".join(output["data"]["image/png"]).replace("\n", "")
                parts.append(f"![](data:image/png;base64,{picture})")
    return "\n\n".join([*parts, f"The notebook: [{path.name}]({path.name}).\n"])


def notebooks() -> dict[str, str]:
    """Return the pages of the notebooks: their names and texts."""
    found = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
    return {f"notebooks/{path.stem}.md": notebook_page(path) for path in found}


def outside() -> dict[str, str]:
    """Return the pages beside docs/, with links as they are from within it."""
    pages = {}
    for name, page in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, here in OUTSIDE.items():
            text = text.replace(f"]({other})", f"]({here})")
        pages[page] = text.replace("](notebooks)", "](notebooks/first_study.md)")
    return pages


def on_config(config: Any) -> Any:
    """Put the pages of a folder into the navigation in place of its name."""
    tables = sorted(ROOT.glob("docs/evidence/tables/*.md"))
    made = [*reference(), *notebooks(), *(str(path.relative_to(ROOT / "docs")) for path in tables)]

    def filled(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: filled(below) for title, below in entry.items()}
        if isinstance(entry, list):
            return [filled(below) for below in entry]
        return [page for page in made if page.startswith(entry)] if entry.endswith("/") else entry

    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for name, text in {**outside(), **reference(), **notebooks()}.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leave out the marks of tests; turn links to files beside docs/ into those to their pages."""
    for name, here in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name})", f"]({here})")
    return re.sub(r"^ *<!-- docs: .* -->\n", "", markdown, flags=re.MULTILINE)
