#!/usr/bin/env bash
# Prints the ten packages that took longest, from the JSON events of go test in a file.
set -euo pipefail
sed -nE '/"Test":/d; s/.*"Action":"(pass|fail)".*"Package":"([^"]+)".*"Elapsed":([0-9.]+).*/\3 \2/p' "$1" |
	sort -rn | head -10 | awk '{printf "%8.1f  %s\n", $1, $2}'
