// Package konnectivity is the plane's end of konnectivity: it dials for the API server through agents that run on the
// cluster's nodes and connect to the plane. Decision 109 has the credentials and the choice of an agent.
//
// It speaks the protocol of apiserver-network-proxy v0.34 to upstream's agent. Agents are not trusted: a malformed
// packet harms no other agent and not the process.
package konnectivity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Protocol is the name by which agents select this server in TLS's ALPN.
const Protocol = "konnectivity"

const (
	dialLimit = 15 * time.Second // an agent gives up after 5
	pingEvery = 30 * time.Second
	pongLimit = 15 * time.Second
	minPing   = 10 * time.Second // an agent that pings more often is disconnected
	maxPacket = 1 << 20
	// maxHeaders bounds what an agent says about itself.
	maxHeaders = 16 << 10
)

// Egress decides what happens to dials while no agent is connected.
type Egress string

// Kinds of egress.
const (
	Tunnel Egress = "tunnel" // they are refused
	Direct Egress = "direct" // this process dials
)

// ErrNoAgent is the error of a dial that no agent can serve.
var ErrNoAgent = errors.New("no node of the cluster is connected")

// Options of a Server. All are required.
type Options struct {
	Serving  string // file with the serving certificate and its key, read again for each connection
	ClientCA string // file with the authority of the nodes' client certificates
	Egress   Egress
	Log      *slog.Logger
}

// Server dials through connected agents. Its methods may be called at once.
type Server struct {
	o      Options
	agents agents
	grpc   *grpc.Server
	direct net.Dialer
}

// New reads the authority. Serve accepts agents.
func New(o Options) (*Server, error) {
	content, err := os.ReadFile(o.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("konnectivity: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("konnectivity: %s has no certificate", o.ClientCA)
	}
	s := &Server{o: o, direct: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}}
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{Protocol},
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  clients,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(o.Serving, o.Serving)
				return &pair, err
			},
		})),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pongLimit}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxPacket), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(4),
		grpc.SharedWriteBuffer(true), grpc.ConnectionTimeout(helloLimit),
	)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "AgentService",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Connect", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.connect(stream) },
		}},
	}, s)
	return s, nil
}

// Serve accepts agents on l until Stop is called.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop ends all connections.
func (s *Server) Stop() { s.grpc.Stop() }

// Dial connects to an address as an agent reaches it. It is the API server's dialer.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	a := s.agents.choose(host)
	if a == nil {
		if s.o.Egress == Direct {
			return s.direct.DialContext(ctx, network, address)
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: named{network, address}, Err: ErrNoAgent}
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := a.dial(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: named{network, address},
			Err: fmt.Errorf("by the agent of node %s: %w", a.node, err)}
	}
	return conn, nil
}

// connect serves the stream of one agent until it ends.
func (s *Server) connect(stream grpc.ServerStream) error {
	node, err := nodeOf(stream.Context())
	if err != nil {
		s.o.Log.Warn("an agent was refused", "error", err)
		return err
	}
	if err := stream.SendHeader(metadata.Pairs("serverID", "plane", "serverCount", "1")); err != nil {
		return err
	}
	a := newAgent(node, identifiers(stream.Context()), stream)
	s.agents.add(a)
	s.o.Log.Info("a node's agent is connected", "node", node)
	err = a.serve()
	s.agents.remove(a)
	s.o.Log.Info("a node's agent has left", "node", node, "error", err)
	return err
}

// nodeOf returns the node that the client certificate of a connection names.
func nodeOf(ctx context.Context) (string, error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", status.Error(codes.Unauthenticated, "no certificate")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return "", status.Error(codes.Unauthenticated, "no certificate")
	}
	subject := info.State.VerifiedChains[0][0].Subject
	node, ok := strings.CutPrefix(subject.CommonName, "system:node:")
	if !ok || node == "" || !slices.Contains(subject.Organization, "system:nodes") {
		return "", status.Errorf(codes.PermissionDenied, "%s is no node", subject)
	}
	return node, nil
}

// named is an address of which nothing is known but its text.
type named struct{ network, address string }

func (n named) Network() string { return n.network }
func (n named) String() string  { return n.address }
