"""The checks are scripts that import each other, as `make lint` runs them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
