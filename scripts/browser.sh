#!/usr/bin/env bash
# Make sure that there is a browser for the tests of the page: a Chromium of the system, or one from apt.
#
#   CI    where it is set, a browser that cannot be had is a failure; else the tests are skipped, and say so
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
compgen -G "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}/chromium*" >/dev/null && exit 0

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_with_apt() {
    command -v apt-get >/dev/null || return
    export DEBIAN_FRONTEND=noninteractive
    echo "No Chromium here; installing it with apt-get for the tests of the page …" >&2
    as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null ||
        { as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
}

if ! install_with_apt; then
    echo "There is no Chromium, and apt-get could not install it: the tests of the page will not run." >&2
    echo "Install it (Debian: apt-get install chromium) or: .venv/bin/playwright install chromium" >&2
    if [ -n "${CI:-}" ]; then exit 1; fi
fi
