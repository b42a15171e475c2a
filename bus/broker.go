package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"atoll.dev/pki"
)

// BrokerOptions configure the embedded broker: TLS, limits and the rights of services.
type BrokerOptions struct {
	TLS        *tls.Config // must require client certificates and name their CA
	Source     string      // the source id in topics; default "maestro"
	Logger     *slog.Logger
	Registerer prometheus.Registerer

	MaxPacket  uint32 // default 4 MiB
	MaxPending int    // bytes that may wait for one slow client before it is cut off; default 64 MiB

	// Services holds the rights of the region's services, by the common names of
	// their certificates. Default: system:maestro, the source of all works, and
	// system:clm and system:adapter, which use EventTopic and HelloTopic.
	Services map[string]Service
}

func (o BrokerOptions) withDefaults() BrokerOptions {
	if o.Source == "" {
		o.Source = "maestro"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxPacket == 0 {
		o.MaxPacket = 4 << 20
	}
	if o.MaxPending == 0 {
		o.MaxPending = 64 << 20
	}
	return o
}

// Broker is an MQTT 5 broker in this process that keeps nothing: it ends a session
// with its connection, retains no message and accepts no will. The common name of
// a client's certificate is the client's identity; rules decide on its rights.
type Broker struct {
	o       BrokerOptions
	server  *mqtt.Server
	serving atomic.Bool
	slow    prometheus.Counter
	refused prometheus.Counter
	gate    *gate
	log     *rate.Limiter // for log lines that any unauthenticated client can cause

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // nil once the broker stops
	owners map[string]*peer      // by client id
}

const (
	// takeoverTimeout bounds how long a new connection waits for the end of the old
	// connection with its client id.
	takeoverTimeout = 10 * time.Second
	maxClients      = 20_000
)

// NewBroker returns a broker that serves when Serve is called.
func NewBroker(o BrokerOptions) (*Broker, error) {
	o = o.withDefaults()
	if o.TLS == nil || o.TLS.ClientAuth != tls.RequireAndVerifyClientCert || o.TLS.ClientCAs == nil {
		return nil,
			errors.New(
				"broker: TLS must require client certificates and verify them against the region's CA: the certificates are " +
					"the identities")
	}
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumClients = maxClients
	capabilities.MinimumProtocolVersion = 5
	capabilities.MaximumQos = 1
	capabilities.RetainAvailable = 0
	capabilities.TopicAliasMaximum = 0
	capabilities.MaximumSessionExpiryInterval = 0
	capabilities.MaximumMessageExpiryInterval = 0 // no limit but the expiry that the sender sets
	capabilities.ReceiveMaximum = 8192
	capabilities.MaximumInflight = math.MaxUint16
	capabilities.MaximumClientWritesPending = 4 * maxQueued
	capabilities.MaximumPacketSize = o.MaxPacket
	capabilities.Compatibilities.NoInheritedPropertiesOnAck = true // else each PUBACK repeats the attributes of its event
	b := &Broker{
		o: o, conns: map[net.Conn]struct{}{}, owners: map[string]*peer{}, gate: newGate(), log: rate.NewLimiter(1, 20),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "atoll_broker_slow_clients_total", Help: "Clients cut off because they did not read what was sent " +
				"to them."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "atoll_broker_refused_connections_total", Help: "Connections refused because too many others had " +
				"not shown a certificate yet."}),
	}
	b.server = mqtt.New(&mqtt.Options{
		Capabilities: capabilities,
		// The library logs whole packets, whose payloads may hold Secrets; the hook logs instead.
		Logger:                 slog.New(slog.DiscardHandler),
		SysTopicResendInterval: int64((24 * time.Hour).Seconds()),
	})
	if err := b.server.AddHook(&hook{broker: b, rules: newRules(o.Source, o.Services), seed: maphash.MakeSeed()},
		nil); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if o.Registerer != nil {
		b.register(o.Registerer)
	}
	return b, nil
}

// register registers the broker's metrics.
func (b *Broker) register(r prometheus.Registerer) {
	r.MustRegister(b.slow, b.refused)
	for name, metric := range map[string]struct {
		help  string
		value *int64
	}{
		"atoll_broker_clients":           {"Connected clients.", &b.server.Info.ClientsConnected},
		"atoll_broker_messages_received": {"Messages received.", &b.server.Info.MessagesReceived},
		"atoll_broker_messages_sent":     {"Messages sent.", &b.server.Info.MessagesSent},
		"atoll_broker_subscriptions":     {"Subscriptions.", &b.server.Info.Subscriptions},
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: metric.help},
			func() float64 { return float64(atomic.LoadInt64(metric.value)) }))
	}
}

// Serve accepts connections until ctx ends, then closes all and returns. The
// listener is closed too.
func (b *Broker) Serve(ctx context.Context, l net.Listener) error {
	if err := b.server.Serve(); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	var clients sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	b.serving.Store(true)
	var err error
	pause := acceptPause
	for {
		conn, acceptErr := l.Accept()
		if acceptErr != nil {
			if ctx.Err() != nil || errors.Is(acceptErr, net.ErrClosed) {
				break
			}
			if !isTemporary(acceptErr) {
				err = fmt.Errorf("broker: accepting: %w", acceptErr)
				break
			}
			if b.log.Allow() {
				b.o.Logger.Warn("no connection can be accepted", "error", acceptErr, "retry_in", pause.String())
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, acceptPauseMax)
			continue
		}
		pause = acceptPause
		identified := b.gate.enter(conn.RemoteAddr())
		if identified == nil {
			b.refused.Inc()
			if b.log.Allow() {
				b.o.Logger.Warn("connection refused: too many others have not shown a certificate yet", "remote",
					conn.RemoteAddr().String())
			}
			resetConnection(conn)
			continue
		}
		if !b.track(conn) {
			identified()
			conn.Close()
			continue
		}
		clients.Go(func() {
			defer b.untrack(conn)
			defer identified()
			b.serve(ctx, conn, identified)
		})
	}
	b.serving.Store(false)
	l.Close()
	b.closeAll()
	clients.Wait()
	b.server.Close()
	return err
}

// Check is a readiness check.
func (b *Broker) Check(context.Context) error {
	if !b.serving.Load() {
		return errors.New("not serving yet")
	}
	return nil
}

// serve completes the TLS handshake and serves the connection until it ends. It
// calls identified once the client owns a client id.
func (b *Broker) serve(ctx context.Context, conn net.Conn, identified func()) {
	defer conn.Close()
	secured := tls.Server(conn, b.o.TLS)
	deadline := time.Now().Add(identifyTimeout)
	hctx, cancel := context.WithDeadline(ctx, deadline)
	err := secured.HandshakeContext(hctx)
	cancel()
	if err != nil {
		if b.log.Allow() {
			b.o.Logger.Info("connection refused", "remote", conn.RemoteAddr().String(), "error", err)
		}
		return
	}
	secured.SetDeadline(deadline) // until CONNECT; afterwards the keep-alive sets deadlines
	// Identity.ServerTLS has refused a wrong issuing CA in the handshake, but BrokerOptions.TLS may be another
	// configuration, which knows no issuing CAs. So the broker, too, takes the name from PeerName and nowhere else.
	state := secured.ConnectionState()
	proven, err := pki.PeerName(&state)
	if err != nil {
		if b.log.Allow() {
			b.o.Logger.Info("connection refused", "remote", conn.RemoteAddr().String(), "error", err)
		}
		return
	}
	leaf, name := state.VerifiedChains[0][0], string(proven)
	p := newPeer(secured, conn, name, b.o.MaxPending, func() {
		b.slow.Inc()
		b.o.Logger.Warn("client too slow", "name", name, "remote", conn.RemoteAddr().String())
	})
	p.identified = identified
	// An expired certificate proves no identity. A running client has renewed it and
	// connects again with the new one.
	expiry := time.AfterFunc(time.Until(leaf.NotAfter), func() {
		b.o.Logger.Info("client's certificate has expired", "name", name, "remote", conn.RemoteAddr().String())
		p.reset()
	})
	defer expiry.Stop()
	var writer sync.WaitGroup
	writer.Go(p.send)
	b.server.EstablishConnection("tls", p)
	b.releaseClientID(p)
	p.Close()
	writer.Wait()
}

// claimClientID makes p the owner of a client id. When the same client owns it on
// an older connection, claimClientID ends that connection first and waits until
// the library has removed it: the library removes clients and subscriptions by
// client id, so a later removal of the old connection would remove those of the
// new one. It fails when a client with another name owns the id, or when the old
// connection does not end within takeoverTimeout.
func (b *Broker) claimClientID(id string, p *peer) error {
	deadline := time.NewTimer(takeoverTimeout)
	defer deadline.Stop()
	for {
		b.mu.Lock()
		old := b.owners[id]
		if old == nil {
			p.clientID, b.owners[id] = id, p
			b.mu.Unlock()
			p.identified()
			return nil
		}
		b.mu.Unlock()
		if old.name != p.name {
			return errors.New("client id is in use by another")
		}
		old.Close()
		resetTimer := time.AfterFunc(closeTimeout, old.reset)
		select {
		case <-old.ended:
			resetTimer.Stop()
		case <-deadline.C:
			resetTimer.Stop()
			return errors.New("the last connection with this client id does not end")
		}
	}
}

// releaseClientID ends p's ownership of its client id. It is called after the
// library has removed the client.
func (b *Broker) releaseClientID(p *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owners[p.clientID] == p {
		delete(b.owners, p.clientID)
	}
	close(p.ended)
}

// track records a connection for closeAll. It returns false once the broker stops.
func (b *Broker) track(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns == nil {
		return false
	}
	b.conns[conn] = struct{}{}
	return true
}

// untrack removes a connection that has ended.
func (b *Broker) untrack(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, conn)
}

// closeAll closes all connections, and makes track refuse new ones.
func (b *Broker) closeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.conns {
		conn.Close()
	}
	b.conns = nil
}
