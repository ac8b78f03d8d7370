#!/bin/sh
# The browser of the explorer's tests: Debian's or Ubuntu's own chromium. Does nothing where there is one already.
set -eu
if command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "no chromium and no apt-get: install chromium by hand for the browser tests" >&2
  exit 0
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1 || ! sudo -n true 2>/dev/null; then
    echo "installing chromium needs root: the browser tests will be skipped" >&2
    exit 0
  fi
  as_root="sudo -n"
fi
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends chromium
