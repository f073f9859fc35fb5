#!/bin/sh
# run.sh URL MODEL: installs the pinned client if it is missing and drives the router at URL with it.
# Exit code 77: skipped, because node or the package cannot be had here.
set -eu
cd "$(dirname "$0")"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "skipped: node and npm are not installed"
  exit 77
fi
if [ ! -d node_modules/openai ] && ! npm ci --silent --no-audit --no-fund; then
  echo "skipped: npm cannot install the openai package"
  exit 77
fi
exec node client_test.mjs "$@"
