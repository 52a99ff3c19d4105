"""What packagers read: the changelog, versions, recipes and SECURITY.md say the same as the code."""

import re
from pathlib import Path

import pytest

from mpishare._version import VERSION

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_changelog_is_one_of_keep_a_changelog():
    """Its versions and kinds of changes; and the version of the package is the one that may be cited."""
    text = (ROOT / "CHANGES.md").read_text()
    first, *others = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", other) for other in others)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_versions_of_python_are_the_same_everywhere():
    """Those that the package declares, the workflow tests, and the Makefile looks for."""
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow.partition("python: [")[2].partition("]")[0]) == declared
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"python(3\.\d+)", makefile)) == set(declared)
    first, last = (version.replace("3.", "(3, ") + ")" for version in (declared[0], declared[-1]))
    assert f"{first} <= sys.version_info[:2] <= {last}" in makefile
    assert f'requires-python = ">={declared[0]}"' in PYPROJECT


@pytest.mark.parametrize(("recipe", "form"), [("recipe.yaml", "- {} >={}\n"), ("package.py", '"py-{}@{}:"')])
def test_recipes_name_the_versions_that_pyproject_declares(recipe, form):
    text = (ROOT / "docs/packaging" / recipe).read_text()
    [line] = re.findall(r"^dependencies = \[(.*)\]$", PYPROJECT, re.MULTILINE)
    for name, version in re.findall(r'"(\w+)>=([\d.]+)"', line):
        assert form.format(name, version) in text
    assert f'"{VERSION}"' in text


def test_modules_have_the_version():
    packaging = ROOT / "docs/packaging"
    [easyconfig] = packaging.glob("*.eb")
    assert easyconfig.name.startswith(f"mpishare-{VERSION}-")
    assert f"version = '{VERSION}'" in easyconfig.read_text()
    assert f"Version: {VERSION}" in (packaging / "mpishare.lua").read_text()
