"""``python -m torcharena.rehearsal``: the command, for a checkout that is not installed."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
