"""Train, predict and serve in a network namespace that has only a loopback interface.

    python benchmarks/reliability/no_network.py

Runs `mufin demo` with the variables unset that keep transformers from asking a hub, then the tests of
prediction and of the service. Needs `unshare` and `ip`, and either root or user namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
TESTS = ["tests/model", "tests/serve/test_ask.py", "tests/serve/test_service.py"]
ALONE = 'ip link set lo up && ip route get 192.0.2.1 2>/dev/null && exit 9; exec "$@"'


def alone(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a namespace without routes."""
    env = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MUFIN_CACHE": str(cwd / "cache")}
    rights = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    words = [*rights, "bash", "-c", ALONE, "bash", *command]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mufin-alone-") as name:
        folder = Path(name)
        if alone(["true"], folder).returncode:
            raise SystemExit("this machine permits no network namespaces")
        found: dict[str, object] = {}
        started = time.monotonic()
        demo = alone([sys.executable, "-m", "mufin", "demo"], folder)
        if demo.returncode:
            raise SystemExit(demo.stderr)
        found["mufin demo, seconds"] = round(time.monotonic() - started)
        tests = [str(ROOT / test) for test in TESTS]
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
        done = alone([sys.executable, "-m", "pytest", *options, *tests], folder)
        if done.returncode:
            raise SystemExit(done.stdout[-4000:])
        found["tests"] = done.stdout.strip().splitlines()[-1]
        print(json.dumps(found))


if __name__ == "__main__":
    main()
