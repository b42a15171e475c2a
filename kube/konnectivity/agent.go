package konnectivity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// chunk is how many bytes of a connection one packet to an agent has at most.
const chunk = 16 << 10

// maxCloses bounds the connections of an agent that wait to be closed.
const maxCloses = 256

var errAgentLeft = errors.New("the node's agent has disconnected")

// agent is the stream of one connected agent.
type agent struct {
	node        string
	identifiers []string
	stream      grpc.ServerStream
	out         chan *pb.Packet // to the goroutine that sends
	closes      chan int64      // numbers of connections to close, to the same goroutine
	left        chan struct{}   // closed when the stream has ended

	mu       sync.Mutex
	lastDial int64
	dials    map[int64]chan<- dialed // waiting for the agent's answer; each has room for one
	conns    map[int64]*conn         // by the agent's number
}

// dialed is an agent's answer to a request to dial.
type dialed struct {
	conn net.Conn
	err  error
}

func newAgent(node string, identifiers []string, stream grpc.ServerStream) *agent {
	return &agent{
		node: node, identifiers: identifiers, stream: stream,
		out: make(chan *pb.Packet), closes: make(chan int64, maxCloses), left: make(chan struct{}),
		dials: map[int64]chan<- dialed{}, conns: map[int64]*conn{},
	}
}

// serve receives the agent's packets until the stream ends; then it ends all connections.
func (a *agent) serve() error {
	go a.sendAll()
	err := a.receiveAll()
	close(a.left)
	a.mu.Lock()
	conns := a.conns
	a.conns = nil
	a.mu.Unlock()
	for _, c := range conns {
		c.end()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (a *agent) sendAll() {
	for {
		var p *pb.Packet
		select {
		case <-a.left:
			return
		case p = <-a.out:
		case id := <-a.closes:
			p = closeRequest(id)
		}
		if a.stream.SendMsg(p) != nil {
			return // the stream has ended, which receiveAll notices, too
		}
	}
}

// send hands a packet to the stream. It blocks while the agent is slow.
func (a *agent) send(ctx context.Context, p *pb.Packet) error {
	select {
	case a.out <- p:
		return nil
	case <-a.left:
		return errAgentLeft
	case <-a.stream.Context().Done():
		return errAgentLeft
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *agent) receiveAll() error {
	for {
		p := new(pb.Packet)
		if err := a.stream.RecvMsg(p); err != nil {
			return err
		}
		// A getter returns nil, whose getters return zero, when the content is of another type.
		switch p.Type {
		case pb.PacketType_DIAL_RSP:
			a.finishDial(p.GetDialResponse())
		case pb.PacketType_DIAL_CLS:
			a.answerDial(p.GetCloseDial().GetRandom(), dialed{err: errors.New("the agent gave up")})
		case pb.PacketType_DATA:
			a.deliver(p.GetData().GetConnectID(), p.GetData().GetData())
		case pb.PacketType_CLOSE_RSP:
			if c := a.takeConn(p.GetCloseResponse().GetConnectID()); c != nil {
				c.end()
			}
		}
	}
}

// dial asks the agent to connect to an address.
func (a *agent) dial(ctx context.Context, address string) (net.Conn, error) {
	answer := make(chan dialed, 1)
	a.mu.Lock()
	a.lastDial++
	id := a.lastDial
	a.dials[id] = answer
	a.mu.Unlock()
	err := a.send(ctx, &pb.Packet{Type: pb.PacketType_DIAL_REQ, Payload: &pb.Packet_DialRequest{
		DialRequest: &pb.DialRequest{Protocol: "tcp", Address: address, Random: id},
	}})
	if err != nil {
		a.takeDial(id)
		return nil, err
	}
	select {
	case d := <-answer:
		return d.conn, d.err
	case <-a.left:
		return nil, errAgentLeft
	case <-ctx.Done():
	}
	if a.takeDial(id) == nil { // the answer came at the same time
		if d := <-answer; d.conn != nil {
			d.conn.Close()
		}
	}
	return nil, ctx.Err()
}

// takeDial removes a dial and returns the channel of its answer; nil when it was removed before.
func (a *agent) takeDial(id int64) chan<- dialed {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.dials[id]
	delete(a.dials, id)
	return answer
}

func (a *agent) answerDial(id int64, d dialed) {
	if answer := a.takeDial(id); answer != nil {
		answer <- d
	}
}

// finishDial makes a connection, or an error, of the agent's answer. A connection that nobody waits for any more is
// closed.
func (a *agent) finishDial(r *pb.DialResponse) {
	if r.GetError() != "" {
		a.answerDial(r.GetRandom(), dialed{err: errors.New(r.GetError())})
		return
	}
	id := r.GetConnectID()
	answer := a.takeDial(r.GetRandom())
	if answer == nil {
		a.requestClose(id)
		return
	}
	if id == 0 {
		answer <- dialed{err: errors.New("the agent gave the connection no number")}
		return
	}
	c := newConn(a, id)
	a.mu.Lock()
	_, taken := a.conns[id]
	if !taken {
		a.conns[id] = c
	}
	a.mu.Unlock()
	if taken {
		answer <- dialed{err: fmt.Errorf("the agent gave the connection the number %d, which another one has", id)}
		return
	}
	answer <- dialed{conn: c.start()}
}

// deliver hands received bytes to their connection. It blocks while the connection's reader is slow.
func (a *agent) deliver(id int64, data []byte) {
	a.mu.Lock()
	c := a.conns[id]
	a.mu.Unlock()
	if c != nil && !c.receive(data) {
		a.takeConn(id)
		a.requestClose(id)
	}
}

// takeConn removes a connection; nil when there is none.
func (a *agent) takeConn(id int64) *conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.conns[id]
	delete(a.conns, id)
	return c
}

func (a *agent) sendClose(id int64) { _ = a.send(context.Background(), closeRequest(id)) }

// requestClose has a connection closed that the agent has and the API server has not. An agent that leaves very many of
// these requests unread keeps connections open on its node only.
func (a *agent) requestClose(id int64) {
	select {
	case a.closes <- id:
	default:
	}
}

func closeRequest(id int64) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_CLOSE_REQ, Payload: &pb.Packet_CloseRequest{
		CloseRequest: &pb.CloseRequest{ConnectID: id},
	}}
}
