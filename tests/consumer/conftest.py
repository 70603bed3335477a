from __future__ import annotations

import sys
from pathlib import Path

# consuming.py is a module beside these tests; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))
