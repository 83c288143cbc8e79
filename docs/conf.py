"""Configuration of the documentation site, built by `make docs`."""

import re
import subprocess
import sys
from pathlib import Path

import fedneighbors

sys.path.insert(0, str(Path(__file__).parents[1]))  # an example imports the attacks

project = "fedneighbors"
author = "the fedneighbors developers"
copyright = "2026, the fedneighbors developers"
version = release = fedneighbors.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "tutorials", "**/GALLERY_HEADER.rst"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "fedneighbors"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]  # the gallery's order is a function, which is not pickled

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc gives types and shapes
numpydoc_show_class_members = False  # the template lists them
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "../examples"],
    "gallery_dirs": ["auto_tutorials", "auto_examples"],
    "filename_pattern": r"plot_",
    "ignore_pattern": r"flower-|__init__",
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 0,
    "download_all_examples": False,
    "remove_config_comments": True,
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
}

PAPER_LINK = re.compile(r"\]\((?:\.\./)+src/fedneighbors/methods/(\w+)/PAPER\.md")


def link_papers(app, docname, source):
    """Replace links to PAPER.md files by links to the pages that include them.

    The pages are read in the repository as well, where such a link names the file.
    """
    source[0] = PAPER_LINK.sub(r"](/papers/\1.md", source[0])


def write_command_line_page(app):
    """Write the page of the commands from their help texts."""
    page = Path(app.confdir, "reference", "command-line.md")
    command = ["-m", "typer", "fedneighbors.cli._main", "utils", "docs", "--name", "fedneighbors"]
    text = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True
    ).stdout
    text = re.sub(r"\[/?bold\]", "`", text)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def drop_foreign_references(app, what, name, obj, options, lines):
    """Replace references of docstrings inherited from scikit-learn by their text."""
    if getattr(obj, "__module__", "").startswith("sklearn"):
        lines[:] = [
            re.sub(r":(?:ref|term):`([^`<]*?)(?: *<[^`]*>)?`", r"\1", line) for line in lines
        ]


def setup(app):
    """Connect the hooks of this file."""
    app.connect("autodoc-process-docstring", drop_foreign_references)
    app.connect("builder-inited", write_command_line_page)
    app.connect("source-read", link_papers)
