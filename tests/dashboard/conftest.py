from __future__ import annotations

import sys
from pathlib import Path

# The modules of the example, which is run as a program from its directory, and launching.py beside these tests.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "dashboard"))
