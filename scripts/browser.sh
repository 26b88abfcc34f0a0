#!/usr/bin/env bash
# Ensure that a Chromium for the tests of the web page is installed; install it with apt-get if not.
#
#   CI    if set, fail when no browser can be installed; otherwise those tests are skipped with a message
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
    echo "Chromium not found; installing it with apt-get for the tests of the web page …" >&2
    as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null ||
        { as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
}

if ! install_with_apt; then
    echo "Chromium not found, and apt-get could not install it: the tests of the web page will not run." >&2
    echo "Install it (Debian: apt-get install chromium), or run: .venv/bin/playwright install chromium" >&2
    if [ -n "${CI:-}" ]; then exit 1; fi
fi
