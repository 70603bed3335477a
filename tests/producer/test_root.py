"""Root can open the spool of another user, who then cannot open what root made there."""

from __future__ import annotations

import logging
import os

import pytest

from kafkasafe import SafeProducer


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """Of a producer of another user than root."""
    spool = tmp_path / "a spool"
    SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool).close(0)
    if os.getuid() == 0:
        os.chown(spool / "FORMAT", 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return spool


def said(caplog, spool):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool, client_id="shop").close(0)
    return [each for each in caplog.records if getattr(each, "event", "") == "spool_of_another_user"]


def test_root_hears_at_the_start_that_the_spool_is_of_another_user(spool, caplog):
    user = (spool / "FORMAT").stat().st_uid
    (line,) = said(caplog, spool)
    assert (line.levelname, line.name, line.client_id) == ("WARNING", "kafkasafe.producer", "shop")
    assert (line.path, line.user) == (str(spool), user)
    assert f"chown -R --from=0 {user} '{spool}'" in line.getMessage()


def test_another_user_hears_nothing(spool, caplog, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert said(caplog, spool) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can own the directory")
def test_root_hears_nothing_about_its_own_spool(spool, caplog):
    os.chown(spool / "FORMAT", 0, -1)
    assert said(caplog, spool) == []
