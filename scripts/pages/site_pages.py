"""Pages of the site that are made of other files: a hook of mkdocs.

The start is landing.md; a page of the reference is made for each public module, by mkdocstrings,
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

TASKS = {
    "Run experiments, and load what they trained": (
        "mpifed.api",
        "mpifed.notebook",
        "mpifed.training.trained",
        "mpifed.errors",
    ),
    "Bring data": (
        "mpifed.data.frames",
        "mpifed.data.from_python",
        "mpifed.dataset",
        "mpifed.data.base",
        "mpifed.federation.clients",
    ),
    "Write models and losses": (
        "mpifed.model",
        "mpifed.models.base",
        "mpifed.models.loss",
        "mpifed.models.losses",
        "mpifed.io.weights",
    ),
    "Write methods": (
        "mpifed.method",
        "mpifed.state",
        "mpifed.surrogate",
        "mpifed.local.options",
        "mpifed.local.solver",
        "mpifed.local.adjustments",
        "mpifed.local.objective",
    ),
    "Write compressors, aggregators, attacks and corrections": (
        "mpifed.message",
        "mpifed.exchange.base",
        "mpifed.exchange.aggregation",
        "mpifed.exchange.attacks",
        "mpifed.exchange.compression",
        "mpifed.exchange.correction",
    ),
    "Study graphs": ("topologies",),
    "Read shipped methods": ("mpifed.algorithms",),
}
"""Modules that a user's program or component imports, by task; docs/stability.md promises them."""

SHIPPED = "mpifed.algorithms"
"""A package of which every module has a page."""

PYTHON = """# Python

`import mpifed` is quick: torch is imported when one of these is first used.

| | |
| --- | --- |
"""

OUTSIDE = {
    "README.md": "readme.md",
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


def modules_of(name: str) -> list[str]:
    """Return the modules with a page that a name of ``TASKS`` stands for."""
    if name == SHIPPED:
        found = sorted(module_path(SHIPPED).parent.rglob("*.py"))
        parts = [path.relative_to(ROOT).with_suffix("").parts for path in found]
        return [".".join(each) for each in parts if not any(part[0] == "_" for part in each)]
    return [name, *(exported_by(name) if name == "topologies" else ())]


def by_task() -> dict[str, list[str]]:
    """Return the modules that have a page, by task."""
    return {
        task: [module for name in names for module in modules_of(name)]
        for task, names in TASKS.items()
    }


def public_modules() -> list[str]:
    """Return the modules that have a page, in the order of the navigation."""
    return [module for modules in by_task().values() for module in modules]


def summary_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].replace("``", "`")


def parsed(module: str) -> ast.Module:
    """Return the code of a module."""
    return ast.parse(module_path(module).read_text(encoding="utf-8"))


def defined(name: str, module: str) -> tuple[str, ast.ClassDef | ast.FunctionDef]:
    """Return the module that defines a name which a module defines or imports, and its code."""
    for node in parsed(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and name in (each.name for each in node.names):
            return defined(name, node.module or "")
    raise LookupError(f"{module} has no {name}")


def reference() -> dict[str, str]:
    """Return the pages of the reference: their names and texts."""
    origins = next(
        ast.literal_eval(node.value)
        for node in parsed("mpifed").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES"
    )
    lines = []
    for name, module in origins.items():
        module, node = defined(name, module)
        page = f"{module}.md#{module}.{name}"
        lines.append(f"| [`mpifed.{name}`]({page}) | {summary_of(node)} |")
    parts = [PYTHON + "\n".join(lines)]
    for task, modules in by_task().items():
        rows = [f"| [`{name}`]({name}.md) | {summary_of(parsed(name))} |" for name in modules]
        head = [f"## {task}\n", "| module | what it has |", "| --- | --- |"]
        parts.append("\n".join([*head, *rows]))
    pages = {f"reference/{name}.md": f"# {name}\n\n::: {name}\n" for name in public_modules()}
    return {"reference/mpifed.md": "\n\n".join(parts) + "\n", **pages}


CODE = re.compile(r"^ *```.*?^ *```$|^(?: {4}.*\n)+|`[^`\n]+`", re.DOTALL | re.MULTILINE)


# A variable of one letter with an index, as plain text has it: w_i, θ_t, x_0i.
VARIABLE = re.compile(
    r"(?<![\w`/.\[-])([A-Za-zΑ-ω][\u0300-\u036f]?)_(\d?[A-Za-z]|[a-z]{2}|\d)(?![\w'])"
)


def with_formulas(text: str) -> str:
    """Return Markdown with its LaTeX formulas as MathML, which browsers draw themselves.

    A formula in a line is within a span: Markdown takes a line that begins with ``<math`` for the
    begin of a block, and would tear the sentence.
    """
    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [_typeset(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _typeset(text[end:])])


def _typeset(text: str) -> str:
    """Return Markdown without code, with its formulas as MathML."""
    shown = re.sub(
        r"\$\$(.+?)\$\$",
        lambda found: convert(found[1], display="block").replace(
            "<mtable>", '<mtable displaystyle="true">'
        ),
        text,
        flags=re.DOTALL,
    )
    shown = re.sub(r"\$([^$]+)\$", lambda found: f"<span>{convert(found[1])}</span>", shown)
    return "\n".join(
        line if line.startswith(("#", "<math")) else VARIABLE.sub(r"<i>\1</i><sub>\2</sub>", line)
        for line in shown.split("\n")
    )


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
    made = [*notebooks(), *(str(path.relative_to(ROOT / "docs")) for path in tables)]

    def filled(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: filled(below) for title, below in entry.items()}
        if isinstance(entry, list):
            return [filled(below) for below in entry]
        if entry == "reference/":
            tasks = [
                {task: [f"reference/{name}.md" for name in names]}
                for task, names in by_task().items()
            ]
            return [{"By task": "reference/mpifed.md"}, *tasks]
        return [page for page in made if page.startswith(entry)] if entry.endswith("/") else entry

    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    landing = (ROOT / "scripts/pages/landing.md").read_text(encoding="utf-8")
    for name, text in {"index.md": landing, **outside(), **reference(), **notebooks()}.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    return files


BOOSTS = {"how_do_i.md": 8, "running.md": 4, "data.md": 4, "evidence/": 0.3, "reference/": 0.2}
"""How much a page counts in the search, by the begin of its name: answers come before code."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leave out the marks of tests; turn links to files beside docs/ into those to their pages."""
    for begin, boost in BOOSTS.items():
        if page.file.src_uri.startswith(begin):
            page.meta["search"] = {"boost": boost}
    for name, here in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name})", f"]({here})")
    markdown = re.sub(r"^ *<!-- docs: .* -->\n", "", markdown, flags=re.MULTILINE)
    return markdown if page.file.src_uri in notebooks() else with_formulas(markdown)
