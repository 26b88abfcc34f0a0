#!/usr/bin/env bash
# Install packages into a virtual environment at the versions of constraints.txt, with uv if available.
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

install_with_uv() {
    [ -x "$env/bin/uv" ] || "$python" -m pip install --quiet -c constraints.txt uv || return
    local links=${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null)}
    links=$(echo "$links" | xargs | tr ' ' ',') # pip separates by spaces, uv by commas
    if [ -n "$links" ]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-$links}; fi
    "$env/bin/uv" pip install --python "$python" -c constraints.txt "$@"
}

if [ ! -x "$python" ]; then
    require_311 "${PYTHON:-python3}"
    "${PYTHON:-python3}" -m venv "$env"
fi
require_311 "$python"

if ! install_with_uv "$@"; then
    echo "uv failed; installing with pip, which takes longer" >&2
    "$python" -m pip install -c constraints.txt "$@"
fi
