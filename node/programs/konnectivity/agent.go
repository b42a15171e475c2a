// Package konnectivity connects a node to the konnectivity server of its cluster's plane, and dials for the
// plane: the node's kubelet, pods and Services. The protocol's code is upstream's.
//
// Upstream's command reads the client certificate once. A node uses kubelet's certificate, which rotates, so this
// package reads it again for each handshake.
package konnectivity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"sigs.k8s.io/apiserver-network-proxy/pkg/agent"
)

// protocol is the ALPN protocol by which the plane distinguishes agents from clients of the API server.
const protocol = "konnectivity"

// pingEvery is the interval of pings. The server ends connections that ping more often than every 10 s.
const pingEvery = 30 * time.Second

// An Agent dials for the plane of one node's cluster.
type Agent struct {
	Server      string // host:port of the plane, or of the router
	ServerName  string // TLS server name of the plane
	CA          string // file with the certificates that sign the plane's certificate
	Certificate string // file with kubelet's certificate and its key
	Node        string // name of the node
	Address     string // IP of the node
}

// Run connects, and connects again after each break, until ctx ends. It fails at once when a setting is wrong.
func (a Agent) Run(ctx context.Context) error {
	config, err := a.tls()
	if err != nil {
		return err
	}
	identifiers := url.Values{"host": {a.Node}}
	ip := net.ParseIP(a.Address)
	switch {
	case ip == nil:
		return fmt.Errorf("%q is not an IP address of a node", a.Address)
	case ip.To4() != nil:
		identifiers.Set("ipv4", a.Address)
	default:
		identifiers.Set("ipv6", a.Address)
	}
	clients := (&agent.ClientSetConfig{
		Address:          a.Server,
		AgentID:          a.Node,
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
func (a Agent) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(a.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New(a.CA + " has no PEM certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: a.ServerName,
		RootCAs:    roots,
		NextProtos: []string{protocol},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(a.Certificate, a.Certificate)
			return &pair, err
		},
	}, nil
}
