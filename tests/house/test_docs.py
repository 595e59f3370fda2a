"""The documents: links lead somewhere, Python in them compiles, and what the format's page shows is what is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_documents_compiles(page):
    for at, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        compile(block, f"{page.name}, block {at + 1}", "exec")


def test_every_key_of_a_configuration_is_described():
    from milepost.recipes.config import RecipeConfig

    text = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in RecipeConfig.model_fields if f"`{name}`" not in text] == []
