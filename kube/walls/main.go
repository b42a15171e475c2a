package walls

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Main builds the walls around this process and prints their names, so that a starter learns which ones this machine
// has. It returns the exit code.
func Main(args []string, out, errors io.Writer) int {
	dir, err := os.MkdirTemp("", "atoll-walls-")
	if err == nil {
		defer os.Remove(dir)
		o := Options{Dir: dir}
		if slices.Contains(args, "--own-network") {
			o.Network = Own
		}
		var standing []string
		if standing, err = Build(o); err == nil {
			fmt.Fprintln(out, strings.Join(standing, " "))
			return 0
		}
	}
	fmt.Fprintf(errors, "atoll-kube: %v\n", err)
	return 1
}
