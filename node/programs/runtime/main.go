// Command containerd is containerd and its client ctr in one binary, unmodified upstream code. Called as "ctr", or with
// ctr as first argument, it is the client.
//
// It is a module of its own because it needs a newer interface of container runtimes (k8s.io/cri-api) than the kubelet
// of the same node compiles with. Over the wire the two agree.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/containerd/containerd/v2/cmd/ctr/app"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "ctr" {
		os.Args = os.Args[1:]
	}
	run := command.App().Run
	name := filepath.Base(os.Args[0])
	if name == "ctr" {
		run = app.New().Run
	}
	if err := run(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
