"""What every test runs under: one quiet thread, no hub, no settings from the caller's environment."""

from __future__ import annotations

import os

# Before torch is imported anywhere: test processes share the cores, and threads that spin while they wait starve them.
os.environ["GOMP_SPINCOUNT"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
for _name in [name for name in os.environ if name.startswith("PACELINE_") and name != "PACELINE_CACHE_DIR"]:
    del os.environ[_name]
# Where there is no GPU the kernels run in Triton's interpreter, which must be chosen before triton is imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"
# An engine that chooses its depths measures costs first: tests that mean to say so.
os.environ["PACELINE_SPEC_ADAPTIVE"] = "0"

from hypothesis import settings  # noqa: E402

settings.register_profile("paceline", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("paceline")
