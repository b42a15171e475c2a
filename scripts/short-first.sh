#!/usr/bin/env bash
# Runs a test program, and before it those of its tests that depend on -short, with -short, as
# "make quick" runs them: tests whose file uses a package that leaves out tests with -short, or
# random cases of which -short draws fewer. The program is the same, so nothing is compiled twice.
# go test -exec starts this in the directory of the package, with the program and its arguments.
set -uo pipefail

case " $* " in
*" -test.run="* | *" -test.short="*) exec "$@" ;; # somebody has chosen the tests
esac
tests=$(grep -lsE '\b(rapid|quick|pgtest|planetest|localtest|testworld)\.|testing\.Short\(\)' -- *_test.go |
	xargs -r grep -hoE '^func Test[A-Z0-9_][A-Za-z0-9_]*\(t ' |
	sed -E 's/^func //; s/\(t $//; /^TestMain$/d' | paste -sd'|')
if [[ -n $tests ]]; then
	output=$("$1" -test.paniconexit0 -test.short -test.timeout=20m -test.run="^($tests)\$" 2>&1) || {
		printf 'with -short, as "make quick" runs it:\n%s\n' "$output"
		exit 1
	}
fi
exec "$@"
