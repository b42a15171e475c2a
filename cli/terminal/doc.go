// Package terminal is what all commands share: the session (streams, home, client of the region), the flag -o with its
// formats, tables and durations for people, and files that are replaced whole.
//
// Only packages of cli import it.
package terminal
