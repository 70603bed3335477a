"""The public names are those of the committed list, and the page about them is true."""

from __future__ import annotations

import importlib
import json
import re
import tomllib

import public_api
import pytest
from programs import python

import kafkasafe

PYPROJECT = tomllib.loads((public_api.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_public_names_and_signatures_are_the_committed_ones():
    """After a change that is meant: `.venv/bin/python tests/public_api.py`, and a line in the changelog."""
    was = public_api.PATH.read_text(encoding="utf-8").splitlines()
    now = public_api.text().splitlines()
    assert [line for line in was if line not in now] == []
    assert [line for line in now if line not in was] == []
    assert now == was


def test_the_list_sees_a_change_of_a_signature():
    was = public_api.PATH.read_text(encoding="utf-8")
    for expected in (
        "kafkasafe.SafeProducer.send: def(topic: str, value: Any = None,",
        "kafkasafe.SafeProducer.close: def(timeout: float | None = None)",
        "kafkasafe.aio.SafeProducer.send: async def(",
        "kafkasafe.options.ProducerOptions.spool_max_bytes: attribute",
        "kafkasafe.RecordFuture.is_done: property",
        "kafkasafe.errors.WaitTimeoutError: class(KafkaSafeError, KafkaTimeoutError, TimeoutError)",
    ):
        assert expected in was
    for hidden in (
        "kafkasafe.RecordFuture.success",
        "kafkasafe.aio.RecordFuture.is_done",
        " _times:",
        "TYPE_CHECKING",
    ):
        assert hidden not in was


@pytest.mark.parametrize("module", public_api.modules())
def test_a_public_module_says_what_is_public(module):
    names = importlib.import_module(module).__all__
    assert names
    assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("module", ["kafkasafe", "kafkasafe.spark"])
def test_dir_of_a_package_names_what_is_public(module):
    """In a process of its own: tests import modules that users do not."""
    program = f"import json, {module} as m; print(json.dumps([dir(m), m.__all__]))"
    said = python("-c", program, check=True)
    names, public = json.loads(said.stdout)
    shown = {name for name in names if name[0] != "_"}
    assert set(public) <= set(names)
    assert "TYPE_CHECKING" not in names
    assert "Any" not in names
    folder = public_api.ROOT / module.replace(".", "/")
    modules = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert shown - set(public) <= modules
    if module == "kafkasafe":
        assert "__version__" in names
        assert kafkasafe.__version__


def test_the_page_has_the_versions_of_the_package():
    page = public_api.PAGE.read_text(encoding="utf-8")
    (client,) = [each for each in PYPROJECT["project"]["dependencies"] if each.startswith("kafka-python")]
    _, spark = PYPROJECT["project"]["optional-dependencies"]["spark"]
    for said in (PYPROJECT["project"]["requires-python"], client, spark):
        assert f"`{re.sub('^[a-z-]+', '', said)}`" in page
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(PYPROJECT["project"]["classifiers"]))
    assert ", ".join(pythons) in page
