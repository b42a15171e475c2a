package konnectivity

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

func TestWithoutAnAgentTheEgressDecides(t *testing.T) {
	target := echo(t)
	if _, err := newWorld(t, Tunnel).server.Dial(t.Context(), "tcp", target); !errors.Is(err, ErrNoAgent) {
		t.Errorf("tunnel: %v", err)
	}
	conn, err := newWorld(t, Direct).server.Dial(t.Context(), "tcp", target)
	check(t, err)
	conn.Close()
}

func TestUpstreamsAgentDials(t *testing.T) {
	w, target := newWorld(t, Tunnel), echo(t)
	stop := w.startAgent("a", "host=a&ipv4=127.0.0.1")

	conn, err := w.server.Dial(t.Context(), "tcp", target)
	check(t, err)
	sent := make([]byte, 8<<20) // more than a connection stores: the reader begins when all of it is sent or waits
	rand.Read(sent)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		written <- err
	}()
	received := make([]byte, len(sent))
	_, err = io.ReadFull(conn, received)
	check(t, err)
	check(t, <-written)
	if !bytes.Equal(sent, received) {
		t.Error("other bytes came back")
	}

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	closed.Close()
	if _, err := w.server.Dial(t.Context(), "tcp", closed.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a port on which nothing listens: %v", err)
	}

	stop()
	if n, err := conn.Read(received); err != io.EOF {
		t.Errorf("after the agent's end: %d bytes, %v", n, err)
	}
	w.await("the end of the agent", func() bool { return !w.has("a") })
	if _, err := w.server.Dial(t.Context(), "tcp", target); !errors.Is(err, ErrNoAgent) {
		t.Errorf("after the agent's end: %v", err)
	}
}

// A server closes its connection: the API server reads the end. The API server closes its end: the server reads it.
func TestBothEndsClose(t *testing.T) {
	w := newWorld(t, Tunnel)
	w.startAgent("a", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	dial := func() (ours, theirs net.Conn) {
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, _ := l.Accept()
			accepted <- conn
		}()
		ours, err := w.server.Dial(t.Context(), "tcp", l.Addr().String())
		check(t, err)
		return ours, <-accepted
	}
	ours, theirs := dial()
	_, err = theirs.Write([]byte("last words"))
	check(t, err)
	theirs.Close()
	if all, err := io.ReadAll(ours); err != nil || string(all) != "last words" {
		t.Errorf("%q, %v", all, err)
	}
	ours, theirs = dial()
	_, err = ours.Write([]byte("first"))
	check(t, err)
	first := make([]byte, 5)
	// An end that follows at once makes upstream's agent discard what it has not written.
	_, err = io.ReadFull(theirs, first)
	check(t, err)
	ours.Close()
	if rest, err := io.ReadAll(theirs); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestOnlyNodesAreAgents(t *testing.T) {
	w := newWorld(t, Tunnel)
	stranger := newWorld(t, Tunnel)
	for name, config := range map[string]*tls.Config{
		"a user":                  w.tls(pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}),
		"a user in nodes' group":  w.tls(pkix.Name{CommonName: "admin", Organization: []string{"system:nodes"}}),
		"a node in another group": w.tls(pkix.Name{CommonName: "system:node:a"}),
		"a node without a name":   w.tls(node("")),
		"another authority":       stranger.tls(node("a")),
		"no certificate":          {InsecureSkipVerify: true, NextProtos: []string{Protocol}},
	} {
		config.InsecureSkipVerify = true // it is the server that must refuse
		if _, err := w.stream(config, "a"); err == nil {
			t.Errorf("%s is an agent", name)
		}
	}
	if _, err := w.stream(w.tls(node("a")), "a"); err != nil {
		t.Errorf("a node: %v", err)
	}
}

// stream opens an agent's stream by hand.
func (w *world) stream(config *tls.Config, id string) (grpc.ClientStream, error) {
	w.t.Helper()
	conn, err := grpc.NewClient(w.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	check(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	ctx := metadata.AppendToOutgoingContext(w.t.Context(), "agentID", id, "agentIdentifiers", "ipv4=10.0.0.1")
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/AgentService/Connect")
	if err != nil {
		return nil, err
	}
	if md, err := stream.Header(); err != nil || len(md.Get("serverID")) == 0 {
		return nil, fmt.Errorf("header %v: %w", md, errors.Join(err, stream.RecvMsg(new(pb.Packet))))
	}
	return stream, nil
}

func TestMalformedPacketsHarmNothing(t *testing.T) {
	w := newWorld(t, Tunnel)
	stream, err := w.stream(w.tls(node("evil")), "a")
	check(t, err)
	w.await("the agent", func() bool { return w.has("evil") })
	if w.has("a") {
		t.Error("an agent chose the name of another node")
	}
	for kind := range pb.PacketType_name {
		for _, p := range []*pb.Packet{
			{},
			{Payload: &pb.Packet_DialResponse{DialResponse: &pb.DialResponse{ConnectID: 7, Random: 99}}},
			{Payload: &pb.Packet_Data{Data: &pb.Data{ConnectID: 7, Data: []byte("x")}}},
			{Payload: &pb.Packet_CloseResponse{CloseResponse: &pb.CloseResponse{ConnectID: 7}}},
			{Payload: &pb.Packet_CloseDial{CloseDial: &pb.CloseDial{Random: 99}}},
		} {
			p.Type = pb.PacketType(kind)
			check(t, stream.SendMsg(p))
		}
	}
	results := make(chan error, 2)
	dial := func() {
		_, err := w.server.Dial(t.Context(), "tcp", "10.0.0.1:1")
		results <- err
	}
	answer := func(number int64) {
		var p *pb.Packet
		for p == nil || p.Type != pb.PacketType_DIAL_REQ {
			p = new(pb.Packet)
			check(t, stream.RecvMsg(p))
		}
		check(t, stream.SendMsg(&pb.Packet{Type: pb.PacketType_DIAL_RSP, Payload: &pb.Packet_DialResponse{
			DialResponse: &pb.DialResponse{ConnectID: number, Random: p.GetDialRequest().Random}}}))
	}
	// A connection without a number is refused, and what comes for it blocks nothing.
	go dial()
	answer(0)
	for range 4 {
		check(t, stream.SendMsg(&pb.Packet{Type: pb.PacketType_DATA,
			Payload: &pb.Packet_Data{Data: &pb.Data{Data: make([]byte, maxPacket-64)}}}))
	}
	if err := <-results; err == nil {
		t.Error("a connection without a number is served")
	}
	// Two dials, which get one number: the first is served, the second refused.
	for range 2 {
		go dial()
		answer(8)
	}
	if a, b := <-results, <-results; (a == nil) == (b == nil) {
		t.Errorf("two connections with one number: %v, %v", a, b)
	}
}

func TestWhichAgentDials(t *testing.T) {
	named := func(node string, identifiers ...string) *agent { return &agent{node: node, identifiers: identifiers} }
	a, b := named("a", "10.0.0.1", "a"), named("b", "10.0.0.2", "b")
	thief := named("c", "10.0.0.1", "10.0.0.3")
	var s agents
	chosen := func(host, want string) {
		t.Helper()
		got := "none"
		if x := s.choose(host); x != nil {
			got = x.node
		}
		if got != want {
			t.Errorf("%s is dialled by %s, want %s", host, got, want)
		}
	}
	chosen("10.0.0.1", "none")
	s.add(a)
	s.add(b)
	s.add(thief)
	chosen("10.0.0.1", "a")
	chosen("b", "b")
	chosen("10.0.0.3", "c")
	turns := map[string]bool{}
	for range 3 {
		turns[s.choose("10.96.0.1").node] = true
	}
	if len(turns) != 3 {
		t.Errorf("other addresses are dialled by %v only", turns)
	}
	newer := named("a", "10.0.0.1", "a")
	s.add(newer)
	if s.choose("a") != newer {
		t.Error("the older connection of a node is used")
	}
	s.remove(a)
	chosen("10.0.0.1", "a")
	s.remove(newer)
	chosen("10.0.0.1", "c")
	s.add(a) // the address has another holder now
	chosen("10.0.0.1", "c")
	chosen("a", "a")
}

// Connections without the protocol go on as they were sent, those without TLS, too.
func TestOtherConnectionsAreLeftAlone(t *testing.T) {
	w := newWorld(t, Tunnel)
	go http.Serve(w.others, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Host) }))
	conn, err := net.Dial("tcp", w.addr)
	check(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(hangLimit))
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: plain.example\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	check(t, err)
	if body, _ := io.ReadAll(r.Body); string(body) != "plain.example" {
		t.Errorf("%q", body)
	}
}
