//go:build realimage

package main

import (
	"os"
	"runtime"
	"testing"
)

// `make image` runs this test on what it wrote: ATOLL_IMAGE names the directory, ATOLL_IMAGE_VERSION the version.
func TestTheRealImageIsAsTheStandIn(t *testing.T) {
	machine := "linux/" + runtime.GOARCH
	checkLayouts(t, os.Getenv("ATOLL_IMAGE"), map[string][]string{"atoll": {machine}, "atoll-hosting": {machine}},
		[]string{"--version"}, "atoll version "+os.Getenv("ATOLL_IMAGE_VERSION")+"\n")
}
