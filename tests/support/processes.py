"""Runs of code in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def outputs_under_hash_salts(code: str) -> set[str]:
    """Return what Python code prints under two salts of `hash`: one text if it does not depend on the salt."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2024")
    }
