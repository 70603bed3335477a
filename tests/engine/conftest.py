from __future__ import annotations

import sys
from pathlib import Path

# The world of these tests (virtual.py) is a module beside them; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))
