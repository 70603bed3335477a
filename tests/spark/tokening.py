"""Tokens for a broker that checks no signature, importable by Spark's workers."""

import base64
import json
import time


def _part(fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def token() -> tuple[str, dict[str, str]]:
    now = time.time()
    return f"{_part({'alg': 'none'})}.{_part({'sub': 'spark', 'iat': now - 60, 'exp': now + 600})}.", {
        "team": "orders"
    }


def broken() -> str:
    raise RuntimeError("the token server is away")
