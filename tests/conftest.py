"""Every test run has a plan store of its own: nothing that was solved before can hide a fault."""

import os
import tempfile

os.environ["DPSCALE_STORE"] = tempfile.mkdtemp(prefix="dpscale-store-")
