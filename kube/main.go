// Command atoll-kube is a whole Kubernetes control plane, and kubectl, in one binary.
//
// "atoll-kube serve" runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler, all
// unmodified upstream code, in one process from one data directory; package serve documents the
// contract. "atoll-kube kubectl", or a link to the binary that is called kubectl, is kubectl.
//
// This module is executed, never imported: what upstream drags in stays out of the rest of Atoll.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"

	"atoll.dev/kube/restore"
	"atoll.dev/kube/serve"
	"atoll.dev/kube/walls"
)

const usage = `usage:
  atoll-kube serve --data-dir DIR --listen HOST:PORT [flags]   run a control plane
  atoll-kube restore --data-dir DIR --snapshot FILE [flags]    make etcd's data from a backup
  atoll-kube walls [--own-network] [--own-mounts] [--user ID]  print the walls that stand around this process
  atoll-kube kubectl ...                                       run kubectl
  atoll-kube version                                           print the Kubernetes version
`

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(kubectl())
	}
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "serve":
		os.Exit(serve.Main(os.Args[2:]))
	case "restore":
		os.Exit(restore.Main(os.Args[2:], os.Stdout, os.Stderr))
	case "walls":
		os.Exit(walls.Main(os.Args[2:], os.Stdout, os.Stderr))
	case "kubectl":
		os.Args = append([]string{"kubectl"}, os.Args[2:]...)
		os.Exit(kubectl())
	case "version", "--version":
		fmt.Println(version.Get().GitVersion)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}

// kubectl runs the upstream command on os.Args.
func kubectl() int {
	return cli.Run(cmd.NewDefaultKubectlCommand())
}
