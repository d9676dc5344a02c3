"""Hooks of `mkdocs build`: pages made from the code, the examples, the notebooks and the papers.

Links in docs/ are written for who reads the repository. What lies outside docs/ is brought into the site as a page of
its own, so that the built site alone is enough, and links are turned to that page.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import site_drawings  # noqa: E402
import site_leaks  # noqa: E402

LOG = logging.getLogger("mkdocs.hooks")
EXAMPLES = ("ci", "flower", "kuberay", "nvflare", "own", "plans")
PAPERS = tuple(sorted(path.parent.name for path in ROOT.glob("papers/*/README.md")))
# Files of the repository that are pages of the site: where they are there.
BROUGHT = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    **{f"papers/{name}/README.md": f"papers/tables_{name}.md" for name in PAPERS},
    **{
        f"papers/{path.parent.name}/{path.name}": f"papers/{path.parent.name}_{path.stem}.md"
        for path in ROOT.glob("papers/*/log_*.md")
    },
    **{f"examples/{name}/README.md": f"examples/{name}.md" for name in EXAMPLES},
}
# Other ways to name those.
ALSO = {
    "README.md": "index.md",
    "papers": "papers/index.md",
    "benchmarks": "benchmarks.md",
    "docs/design": "design/layout.md",
    **{f"examples/{name}": f"examples/{name}.md" for name in EXAMPLES},
}
HOME = {page: source for source, page in BROUGHT.items()}  # of a page: the file that it was made from
LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```+)(\w[\w-]*)([^\n]*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".csv": "text", ".json": "json"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    for source, page in BROUGHT.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        if source.startswith("examples/"):
            content += _shown_files(ROOT / source)
        files.append(File.generated(config, page, content=content))
    for name in site_leaks.unwritten(ROOT / "docs" / "leaks"):
        files.append(File.generated(config, f"leaks/{name}.md", content=site_leaks.plain_page(name)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(notebook, path.name)))
    from fedspill.report.schema import plan_schema, result_schema

    for name, schema in (("plan", plan_schema()), ("result", result_schema())):
        files.append(File.generated(config, f"schema/{name}-1.json", content=json.dumps(schema, indent=2)))
    return files


def _shown_files(readme: Path) -> str:
    """All files of an example, in full: the reader has nothing but the site."""
    parts = ["\n## The files\n"]
    for path in sorted(readme.parent.rglob("*")):
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts:
            name = path.relative_to(readme.parent)
            parts.append(f'```{LANGUAGES[path.suffix]} title="{name}"\n{path.read_text(encoding="utf-8")}```\n')
    return "\n".join(parts)


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its texts, its code, and what the code put out when it was last run."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _shown_output(output))]
    parts.append(f"[This page as a notebook]({name}){{ download }}")
    return "\n\n".join(parts) + "\n"


def _shown_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    return f"```text\n{''.join(data['text/plain'])}\n```" if "text/plain" in data else ""


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Generated parts, pictures and links."""
    source = page.file.src_uri
    if source == "leaks/index.md":
        markdown = markdown.replace("<!-- generated: others -->", site_leaks.others(ROOT / "docs" / "leaks"))
    elif source.startswith("leaks/"):
        leak = Path(source).stem
        for name in site_leaks.PARTS:
            marker = f"<!-- generated: {name} -->"
            if marker not in markdown:
                LOG.warning("%s has no place for its part %r: write %s", source, name, marker)
            markdown = markdown.replace(marker, site_leaks.part(name, leak))
    markdown = FENCE.sub(_fence, markdown)
    return _outside_fences(markdown, lambda text: LINK.sub(lambda found: _turned(found, source), text))


def on_post_page(output: str, page: Page, config: Any) -> str:
    """The theme hides the inputs of its colour schemes from screen readers, but the Tab key still reached them."""
    return output.replace('<input class="md-option"', '<input tabindex="-1" class="md-option"')


def _fence(found: re.Match[str]) -> str:
    """Pictures are drawn; `file=NAME` and `top=NAME` are said as Material says it, and `skip` is for tests alone."""
    _, language, rest, body = found.groups()
    drawn = {"bars": site_drawings.bars, "points": site_drawings.points, "flow": site_drawings.flow}
    if language in drawn:
        return drawn[language](body)
    said = re.sub(r"file=(\S+)", r'title="\1"', rest).replace(" skip", "")
    said = re.sub(r"top=(\S+)", r'title="\1, at the top"', said)
    return found[0].replace(f"{language}{rest}", f"{language}{said}", 1)


def _outside_fences(markdown: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _turned(found: re.Match[str], page: str) -> str:
    """A link to where its target is in the site; what is not in the site becomes plain text."""
    words, target, anchor = found[1], found[2], found[3] or ""
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    home = HOME.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target)).rstrip("/")
    if page.startswith("notebooks/") and target.endswith(".ipynb"):
        return found[0]  # the file itself, to be downloaded
    path = re.sub(r"\.ipynb$", ".md", path)
    there = BROUGHT.get(path) or ALSO.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if there is None:
        return words if words.startswith("`") else f"{words} (`{path}`)"
    return f"[{words}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"
