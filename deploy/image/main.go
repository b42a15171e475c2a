// Command image writes Atoll's container images as OCI layouts on disk, without a container engine. The script
// scripts/image.sh compiles the programs and calls it; deploy/Containerfile builds the same images with an engine.
//
// The same programs give the same bytes: entries of layers are sorted, owned by numbers and as old as
// SOURCE_DATE_EPOCH says, or as the beginning of 1970.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const usage = `image writes the container images atoll and atoll-hosting as OCI layouts.

  image -programs DIR -out DIR [-version VERSION] [-revision REVISION]

DIR of -programs has a directory linux-ARCH for each architecture, with the static program atoll, and atoll-kube where
atoll-hosting is built, too. DIR of -out is replaced; it has a layout for each image.

  go run . -programs ../../bin/static -out ../../bin/image -version 0.1.0
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run reads the command line, writes the layouts and prints the digest of each image.
func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	var o options
	flags.StringVar(&o.programs, "programs", "", "")
	flags.StringVar(&o.out, "out", "", "")
	flags.StringVar(&o.version, "version", "", "")
	flags.StringVar(&o.revision, "revision", "", "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if o.programs == "" || o.out == "" || flags.NArg() > 0 {
		return errors.New("-programs and -out are needed, and nothing else; see -help")
	}
	var err error
	if o.created, err = sourceDate(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	written, err := writeLayouts(o)
	if err != nil {
		return err
	}
	for _, w := range written {
		fmt.Fprintf(stdout, "%s %s %s\n", filepath.Join(o.out, w.image), w.platform, w.digest)
	}
	return nil
}

// sourceDate returns the time of SOURCE_DATE_EPOCH, in seconds since 1970. Empty is 0.
func sourceDate(text string) (time.Time, error) {
	if text == "" {
		text = "0"
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
