// Command atoll is the one binary of Atoll: the commands of an operator and,
// as subcommands, every service of a region. See `atoll help`.
package main

import (
	"os"

	"atoll.dev/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
