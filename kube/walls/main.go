package walls

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Main builds the walls around this process and prints their names, so that a starter learns which ones this machine
// has. It returns the exit code.
func Main(args []string, out, errors io.Writer) int {
	o := Options{Dir: os.TempDir()} // it only has to exist: a directory made here could not be removed from within
	if slices.Contains(args, "--own-network") {
		o.Network = Own
	}
	if slices.Contains(args, "--own-mounts") {
		o.Mounts = Own
	}
	if i := slices.Index(args, "--user"); i >= 0 && i+1 < len(args) {
		id, err := strconv.Atoi(args[i+1])
		if err != nil {
			fmt.Fprintf(errors, "atoll-kube: --user: %v\n", err)
			return 2
		}
		o.User = id
	}
	standing, err := Build(o)
	if err != nil {
		fmt.Fprintf(errors, "atoll-kube: %v\n", err)
		return 1
	}
	fmt.Fprintln(out, strings.Join(standing, " "))
	return 0
}
