"""The table of options (`kafkasafe/config/table.py`) is the source: types, docstrings and pages agree with it."""

from __future__ import annotations

import enum
import inspect
import re
import typing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kafkasafe import SafeProducer, config
from kafkasafe.config import table, values
from kafkasafe.config.option import KAFKAS, Option
from kafkasafe.errors import ConfigError
from kafkasafe.options import ConsumerOptions, ProducerOptions
from tests.pages.options import texts

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [
    pytest.param(client, field, row, id=f"{client}-{row.name}")
    for client, rows in (("producer", table.PRODUCER), ("consumer", table.CONSUMER))
    for field, row in rows.items()
]
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "producer": (ProducerOptions, config.ProducerConfig, config.validate),
    "consumer": (ConsumerOptions, config.ConsumerConfig, config.validate_consumer),
}
OURS = sorted(table.PRODUCER_DEFAULTS)


def words_of(kind: Any) -> set[Any]:
    """The words of the `Literal` in a type."""
    if typing.get_origin(kind) is typing.Literal:
        return set(typing.get_args(kind))
    return {word for each in typing.get_args(kind) for word in words_of(each)}


@pytest.fixture(autouse=True)
def _spool(monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKASAFE_SPOOL_DIR", str(tmp_path))


@pytest.mark.parametrize(("client", "field", "row"), ROWS)
def test_the_words_of_an_option_are_those_of_its_types(client: str, field: str, row: Option):
    given, configuration, _ = TYPES[client]
    hint = typing.get_type_hints(given)[row.name]
    if isinstance(row.check, values.Choice):
        assert words_of(hint) == set(row.check.words)
        assert words_of(typing.get_type_hints(configuration)[field]) == set(row.check.words)
    elif row.name in table.PRODUCER_DEFAULTS:
        assert words_of(hint) == set()


@pytest.mark.parametrize(("client", "field", "row"), ROWS)
def test_none_is_a_value_if_the_type_says_so(client: str, field: str, row: Option):
    given, configuration, validate = TYPES[client]
    hint = typing.get_type_hints(given)[row.name]
    if hint is Any or row.check in {values.flag, values.anything}:
        return
    may_be_none = type(None) in typing.get_args(hint)
    if not may_be_none:
        with pytest.raises(ConfigError):
            validate({row.name: None})
        return
    value = getattr(validate({row.name: None}), field)
    of_field = typing.get_type_hints(configuration)[field]
    assert value is not None or of_field is Any or type(None) in typing.get_args(of_field)


@pytest.mark.parametrize(("client", "field", "row"), ROWS)
def test_the_text_says_the_unit(client: str, field: str, row: Option):
    known = texts("ConnectionOptions") | texts(TYPES[client][0].__name__)
    text = known[row.name][1]
    assert text
    if row.name.endswith("_ms"):
        assert "millisecond" in text or "producer.id.expiration.ms" in text
    if row.name.endswith("_bytes"):
        assert "bytes" in text


def documented() -> dict[str, tuple[str, str]]:
    """The options that the docstring of SafeProducer explains: type and text."""
    said = inspect.getdoc(SafeProducer) or ""
    part = said.split("\nArgs:\n")[1].split("\nRaises:")[0]
    found = re.findall(r"^    (\w+) \(([\w ]+)\): (.*?)(?=^    \w|\Z)", part, re.MULTILINE | re.DOTALL)
    return {name: (kind, " ".join(text.split())) for name, kind, text in found}


def test_the_docstring_explains_the_options_that_kafka_python_does_not_have():
    known = documented()
    assert set(OURS) - known.keys() == set()
    assert known.keys() - config.DEFAULTS.keys() == set()


@pytest.mark.parametrize(
    "row", [row for row in table.PRODUCER.values() if row.name in OURS], ids=lambda row: row.name
)
def test_the_docstring_agrees_with_the_table(row: Option):
    kind, text = documented()[row.name]
    if isinstance(row.check, values.Choice):
        assert kind == "str"
        assert [word for word in row.check.words if f'"{word}"' not in text] == []
    else:
        hint = typing.get_type_hints(ProducerOptions)[row.name]
        numeric = {int, float} & {hint, *typing.get_args(hint)}
        word = {values.flag: "bool", values.hook: "callable"}.get(row.check, "number" if numeric else "str")
        assert kind in {"int", "float"} if word == "number" else kind == word
    numbers = re.findall(r"Default: (\d+)\.", text)
    assert [int(each) for each in numbers] in ([], [row.default])


def guide() -> dict[str, str]:
    """The default of each option in the tables of docs/options.md."""
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for names, default in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| ", page, re.MULTILINE):
        for name in re.findall(r"\w+", names):
            assert name not in found
            found[name] = default
    return found


def test_the_guide_has_a_row_for_each_option():
    assert set(OURS) - guide().keys() == set()
    assert guide().keys() - config.DEFAULTS.keys() == set()


@pytest.mark.parametrize("name", sorted(guide()))
def test_the_guide_agrees_with_the_table(name: str):
    shown, default = guide()[name], config.DEFAULTS[name]
    if isinstance(default, str):
        assert shown == f'`"{default}"`'
    elif isinstance(default, bool):
        assert shown in {"`True`" if default else "`False`", "yes" if default else "no"}
    elif isinstance(default, int):
        size = re.fullmatch(r"(\d+) MiB", shown)
        number = re.match(r"\d+", shown)
        assert number is not None
        assert (int(size[1]) * 2**20 if size else int(number[0])) == default
    else:
        assert default is None
        assert (
            not re.match(r"[`\"]", shown) or shown.startswith("`KAFKASAFE_SPOOL_DIR`") or "spool_max" in shown
        )


def test_a_field_of_a_configuration_is_a_row_or_is_made_of_several_options():
    fields = set(typing.get_type_hints(config.ProducerConfig))
    others = {"kafka", "decide", "spool_dir", "spool_dir_given", "spool_dir_is_default"}
    assert fields - table.PRODUCER.keys() == others
    assert set(typing.get_type_hints(config.ConsumerConfig)) - table.CONSUMER.keys() == {"kafka"}


def test_a_default_of_kafka_python_is_one():
    assert {
        row.name for row in table.PRODUCER.values() if row.default is KAFKAS
    } <= table.KAFKA_DEFAULTS.keys()


@pytest.mark.parametrize("name", table.FILES_ONLY)
def test_an_option_about_files_cannot_be_combined_with_no_files(name: str):
    words = {"spool_sync": "each", "on_corrupt": "quarantine", "spool_dir": "somewhere"}
    value = words.get(name, 5)
    with pytest.raises(ConfigError, match=f"spool='never' writes no file, so {name}="):
        config.validate({"spool": "never", name: value})


class Word(str, enum.Enum):  # noqa: UP042 - a StrEnum's str() is its text
    """A program's own settings, whose str() is the member's name."""

    ALL = "all"
    EARLIEST = "earliest"
    GZIP = "gzip"
    ID = "app"
    PLAINTEXT = "PLAINTEXT"
    SERVER = "localhost:1"


def test_a_word_may_be_a_member_of_an_enum_of_strings():
    """kafka-python compares, so that it takes them."""
    words = {"acks": Word.ALL, "compression_type": Word.GZIP, "security_protocol": Word.PLAINTEXT}
    assert config.validate(words) == config.validate({name: word.value for name, word in words.items()})
    words = {"auto_offset_reset": Word.EARLIEST, "security_protocol": Word.PLAINTEXT}
    assert config.validate_consumer(words).kafka == words


@pytest.mark.parametrize(
    ("given", "number"),
    [(np.int64(40_000), 40_000), (np.float32(40_000), 40_000.0), (Fraction(80_000, 2), 40_000.0)],
)
def test_a_number_may_be_one_of_another_package(given, number):
    """As in KafkaProducer and KafkaConsumer; kafka-python itself refuses some of them, but only in `poll`."""
    for name in ("linger_ms", "batch_size", "max_block_ms", "metadata_max_age_ms", "request_timeout_ms"):
        assert config.validate({name: given}) == config.validate({name: number})
    for name in ("session_timeout_ms", "max_poll_records", "fetch_max_bytes", "consumer_timeout_ms"):
        found = config.validate_consumer({name: given}).kafka[name]
        assert (found, type(found)) == (number, type(number))


def test_a_member_of_an_enum_of_strings_counts_as_its_text():
    """An f-string of a member is its name. A producer with such a `transactional_id` sent requests with two ids, so that
    no transaction was ever committed; its spool had the member's name.
    """
    names = {"transactional_id": Word.ID, "client_id": Word.ID, "spool_dir": Word.ID, "on_data_loss": "raise"}
    for words in ({**names, "bootstrap_servers": Word.SERVER}, {"bootstrap_servers": [Word.SERVER]}):
        plain = {
            name: [str(word.value) for word in given] if isinstance(given, list) else str.__str__(given)
            for name, given in words.items()
        }
        found = config.validate(words)
        assert found == config.validate(plain)
        assert type(found.client_id) is str
        assert type(found.kafka["bootstrap_servers"]) in {str, list}
        assert "Word" not in repr(found)


@pytest.mark.parametrize("given", [np.timedelta64(5, "ns"), np.timedelta64(5, "s"), Fraction(10**400)])
def test_what_only_looks_like_a_number_is_refused(given):
    """numpy registers its time spans as integers, and those of ns convert to int."""
    for name in ("linger_ms", "batch_size", "max_block_ms", "spool_lane", "metadata_max_age_ms"):
        with pytest.raises(ConfigError, match=name):
            config.validate({name: given})
    for name in ("session_timeout_ms", "max_poll_records", "fetch_max_bytes", "consumer_timeout_ms"):
        with pytest.raises(ConfigError, match=name):
            config.validate_consumer({name: given})


@pytest.mark.parametrize("given", [np.int64(-1), np.float32("nan")])
def test_a_number_of_another_package_is_checked(given):
    for validate, name in ((config.validate, "linger_ms"), (config.validate_consumer, "session_timeout_ms")):
        with pytest.raises(ConfigError, match=f"{name} must be a number of at least"):
            validate({name: given})
