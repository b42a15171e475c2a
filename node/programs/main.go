// Command atoll-node is the part of Kubernetes that runs on a node: kubelet, kube-proxy and the agent of
// konnectivity, unmodified upstream code, in one process. Three processes would each keep the same packages in
// memory.
//
// This module is executed, never imported: what upstream drags in stays out of the rest of Atoll.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"atoll.dev/node/programs/konnectivity"
)

const usage = `usage:
  atoll-node run [FLAGS] -- [FLAGS OF KUBELET]   run kubelet, and the others as soon as it has a certificate
  atoll-node kubelet|kube-proxy ...              run one of them, as a supervisor of an earlier Atoll does
  atoll-node version                             print the Kubernetes version
`

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "run":
		o := parse(os.Args[2:])
		defer logs.FlushLogs()
		if err := o.run(context.Background()); err != nil {
			klog.ErrorS(err, "A part of the node has ended")
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		}
	case "kubelet":
		os.Args = os.Args[1:]
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Args = os.Args[1:]
		os.Exit(cli.Run(kubeproxy.NewProxyCommand()))
	case "version", "--version":
		fmt.Println(version.Get().GitVersion)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}

// options are the flags of `atoll-node run`.
type options struct {
	kubelet      []string // kubelet's arguments
	proxyConfig  string   // kube-proxy's configuration file
	certificate  string   // file with kubelet's certificate and its key, which kubelet makes
	konnectivity konnectivity.Agent
}

// parse reads the flags, and ends the process when they are wrong.
func parse(args []string) options {
	var o options
	flags := flag.NewFlagSet("atoll-node run", flag.ExitOnError)
	flags.StringVar(&o.certificate, "certificate", "", "`file` with kubelet's certificate and its key")
	flags.StringVar(&o.proxyConfig, "kube-proxy-config", "", "kube-proxy's configuration `file`")
	k := &o.konnectivity
	flags.StringVar(&k.Server, "konnectivity-server", "",
		"`host:port` of the plane or of the router; empty: no agent runs")
	flags.StringVar(&k.ServerName, "konnectivity-server-name", "", "TLS server `name` of the plane")
	flags.StringVar(&k.CA, "konnectivity-ca", "", "`file` with the certificates that sign the plane's certificate")
	flags.StringVar(&k.Node, "node", "", "`name` of the node")
	flags.StringVar(&k.Address, "address", "", "`IP` of the node")
	_ = flags.Parse(args) // ends the process after an error
	k.Certificate, o.kubelet = o.certificate, flags.Args()
	return o
}

// run starts kubelet. When the file of kubelet's certificate exists, it starts kube-proxy and the agent of
// konnectivity, which use the certificate. It returns when one of the three ends: without an error after SIGTERM, which
// kubelet handles.
func (o options) run(ctx context.Context) error {
	// kubelet and kube-proxy both configure the process's logs, with the same defaults.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged

	ended := make(chan error, 3) // one of each part
	start := func(part string, run func() error) {
		go func() {
			err := run()
			if err != nil {
				err = fmt.Errorf("%s: %w", part, err)
			} else if part != kubeletPart {
				err = errors.New(part + " has ended")
			}
			ended <- err
		}()
	}
	start(kubeletPart, func() error {
		command := kubelet.NewKubeletCommand(ctx)
		command.SetArgs(o.kubelet)
		return cli.RunNoErrOutput(command)
	})
	select {
	case err := <-ended:
		return err
	case err := <-exists(ctx, o.certificate):
		if err != nil {
			return err
		}
	}
	start("kube-proxy", func() error {
		command := kubeproxy.NewProxyCommand()
		command.SetArgs([]string{"--config", o.proxyConfig})
		return cli.RunNoErrOutput(command)
	})
	if o.konnectivity.Server != "" {
		start("the agent of konnectivity", func() error { return o.konnectivity.Run(ctx) })
	}
	return <-ended
}

// kubeletPart is the only part whose end without an error is expected.
const kubeletPart = "kubelet"
