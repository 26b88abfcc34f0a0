#!/usr/bin/env bash
# Install packages into a virtual environment with uv: the versions of constraints.txt, and only files whose
# hashes it lists.
#
#   scripts/install.sh .venv -e ".[dev]"           creates the environment if it is missing
#
#   PYTHON          the interpreter to create the environment with (python3)
#   PIP_FIND_LINKS  folders of local wheels, as pip reads them; passed on to uv
set -euo pipefail
cd "$(dirname "$0")/.."
env=$1
shift
python=$env/bin/python

require_311() { # INTERPRETER
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    echo "mufin needs Python 3.11 or newer; $1 is $("$1" --version 2>/dev/null || echo 'missing')." >&2
    echo "Remove $env if it exists, and name a newer Python: make install PYTHON=python3.11" >&2
    exit 2
}

if [ ! -x "$python" ]; then
    require_311 "${PYTHON:-python3}"
    "${PYTHON:-python3}" -m venv "$env"
fi
require_311 "$python"

if [ ! -x "$env/bin/uv" ]; then # its entry in constraints.txt is a list of hashes that pip checks
    sed -n '/^uv==/,/[^\\]$/p' constraints.txt >"$env/uv.txt"
    "$python" -m pip install --quiet --require-hashes -r "$env/uv.txt"
fi

links=${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || true)}
links=$(echo "$links" | xargs | tr ' ' ',') # pip separates by spaces, uv by commas
if [ -n "$links" ]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-$links}; fi
if ! "$env/bin/uv" pip install --python "$python" -c constraints.txt -b constraints.txt --require-build-hashes "$@"; then
    echo "A hash mismatch means that a file is not the one that constraints.txt lists, as with a torch build" >&2
    echo "from elsewhere. To install it anyway: UV_NO_VERIFY_HASHES=1 make install" >&2
    exit 1
fi
