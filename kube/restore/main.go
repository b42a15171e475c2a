package restore

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
)

// Main is "atoll-kube restore": it restores as args say, prints the Result as JSON on out, and returns the exit code.
func Main(args []string, out, errs io.Writer) int {
	var o Options
	flags := flag.NewFlagSet("atoll-kube restore", flag.ContinueOnError)
	flags.SetOutput(errs)
	dir := flags.String("data-dir", "", "the plane's `directory`; it must have no data of etcd")
	flags.StringVar(&o.Snapshot, "snapshot", "", "`file` that etcd's Snapshot streamed")
	flags.StringVar(&o.Log, "log", "", "`file` of the changes since, if there are any")
	flags.Uint64Var(&o.Bump, "bump", 0, "by how `much` the revision rises after the restore")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if *dir == "" || o.Snapshot == "" || flags.NArg() > 0 {
		fmt.Fprintln(errs, "atoll-kube: restore needs --data-dir and --snapshot, and takes no arguments")
		return 2
	}
	o.Dir = filepath.Join(*dir, "etcd")
	result, err := Run(o)
	if err != nil {
		fmt.Fprintf(errs, "atoll-kube: restoring %s: %v\n", o.Dir, err)
		return 1
	}
	if err := json.NewEncoder(out).Encode(result); err != nil {
		fmt.Fprintf(errs, "atoll-kube: %v\n", err)
		return 1
	}
	return 0
}
