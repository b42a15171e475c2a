// Command atoll-node is the part of Kubernetes that runs on a node, in one binary: kubelet and kube-proxy, unmodified
// upstream code. The first argument says which of them runs.
//
// This module is executed, never imported: what upstream drags in stays out of the rest of Atoll.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = `usage:
  atoll-node kubelet ...      run kubelet
  atoll-node kube-proxy ...   run kube-proxy
  atoll-node version          print the Kubernetes version
`

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
		os.Args = os.Args[1:]
	}
	switch verb {
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Exit(cli.Run(kubeproxy.NewProxyCommand()))
	case "version", "--version":
		fmt.Println(version.Get().GitVersion)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}
