// Command konnectivity-agent connects a node to the konnectivity server of its cluster's plane, and dials
// for the plane: the node's kubelet, pods and Services. The protocol's code is upstream's.
//
// Upstream's command reads the client certificate once. A node uses kubelet's certificate, which rotates, so this
// command reads it again for each handshake.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"
	"sigs.k8s.io/apiserver-network-proxy/pkg/agent"
)

// protocol is the ALPN protocol by which the plane distinguishes agents from clients of the API server.
const protocol = "konnectivity"

// pingEvery is the interval of pings. The server ends connections that ping more often than every 10 s.
const pingEvery = 30 * time.Second

// settings are the flags.
type settings struct {
	server, serverName string
	ca                 string // file with PEM certificates
	certificate        string // file with kubelet's certificate and key
	name, address      string // of the node
}

func main() {
	klog.InitFlags(nil)
	s := settings{}
	flag.StringVar(&s.server, "server", "", "`host:port` of the plane, or of the router")
	flag.StringVar(&s.serverName, "server-name", "", "TLS server `name` of the plane")
	flag.StringVar(&s.ca, "ca", "", "`file` with the certificates that sign the plane's certificate")
	flag.StringVar(&s.certificate, "certificate", "", "`file` with the client certificate and its key")
	flag.StringVar(&s.name, "node", "", "`name` of the node")
	flag.StringVar(&s.address, "address", "", "`IP` of the node")
	flag.Parse()
	defer klog.Flush()
	if err := s.run(); err != nil {
		klog.ErrorS(err, "The agent cannot start")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

// run connects, and connects again after each break, until the process gets SIGINT or SIGTERM.
func (s settings) run() error {
	config, err := s.tls()
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	identifiers := url.Values{"host": {s.name}}
	ip := net.ParseIP(s.address)
	switch {
	case ip == nil:
		return fmt.Errorf("--address %q is not an IP address", s.address)
	case ip.To4() != nil:
		identifiers.Set("ipv4", s.address)
	default:
		identifiers.Set("ipv6", s.address)
	}
	clients := (&agent.ClientSetConfig{
		Address:          s.server,
		AgentID:          s.name,
		AgentIdentifiers: identifiers.Encode(),
		SyncInterval:     time.Second,
		SyncIntervalCap:  5 * time.Second,
		ProbeInterval:    time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, PermitWithoutStream: true}),
		},
	}).NewAgentClientSet(make(chan struct{}), ctx.Done())
	clients.SetServerCounter(oneServer{})
	clients.Serve()
	<-ctx.Done()
	return nil
}

// oneServer counts the plane's servers: there is one.
type oneServer struct{}

// Count returns the number of servers.
func (oneServer) Count() int { return 1 }

// tls returns the client's configuration.
func (s settings) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(s.ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New(s.ca + " has no PEM certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: s.serverName,
		RootCAs:    roots,
		NextProtos: []string{protocol},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.certificate, s.certificate)
			return &pair, err
		},
	}, nil
}
