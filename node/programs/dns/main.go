// Command coredns is the DNS server of a cluster with real nodes: upstream's CoreDNS with the plugins that a cluster
// needs, and no others. It is the only program of the image atoll.dev/coredns.
//
// It is a module of its own because it needs newer Kubernetes libraries than the kubelet of the same node compiles
// with.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
)

// A query passes the plugins in this order, which is that of upstream's plugin.cfg.
func init() {
	dnsserver.Directives = []string{"reload", "ready", "health", "prometheus", "errors", "log", "loadbalance", "rewrite",
		"cache", "hosts", "kubernetes", "loop", "forward"}
}

func main() { coremain.Run() }
