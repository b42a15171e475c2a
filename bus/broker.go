package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"
)

// BrokerOptions say how the embedded broker is reached and what it takes.
type BrokerOptions struct {
	TLS        *tls.Config // must require and verify client certificates
	Source     string      // the source id in topics; default "maestro"
	Logger     *slog.Logger
	Registerer prometheus.Registerer

	MaxPacket  uint32 // default 4 MiB
	MaxPending int    // bytes that may wait for one slow client before it is cut off; default 32 MiB
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
		o.MaxPending = 32 << 20
	}
	return o
}

// Broker is an MQTT 5 broker in this process that keeps nothing: no session
// outlives its connection, no message is retained, no will is left. A client
// is who its certificate says, and may do what rules say.
type Broker struct {
	o       BrokerOptions
	server  *mqtt.Server
	serving atomic.Bool
	slow    prometheus.Counter

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once the broker stops
}

const (
	handshakeTimeout = 10 * time.Second
	maxClients       = 20_000
)

// NewBroker returns a broker that serves when Serve is called.
func NewBroker(o BrokerOptions) (*Broker, error) {
	o = o.withDefaults()
	if o.TLS == nil || o.TLS.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, errors.New("broker: TLS must require and verify client certificates: they are the identities")
	}
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumClients = maxClients
	capabilities.MinimumProtocolVersion = 5
	capabilities.MaximumQos = 1
	capabilities.RetainAvailable = 0
	capabilities.TopicAliasMaximum = 0
	capabilities.MaximumSessionExpiryInterval = 0
	capabilities.ReceiveMaximum = 8192
	capabilities.MaximumInflight = math.MaxUint16
	capabilities.MaximumClientWritesPending = 1024 // peer does not let it fill
	capabilities.MaximumPacketSize = o.MaxPacket
	b := &Broker{o: o, conns: map[net.Conn]struct{}{}, slow: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "atoll_broker_slow_clients_total", Help: "Clients cut off because they did not read what was sent to them."})}
	b.server = mqtt.New(&mqtt.Options{
		Capabilities: capabilities,
		// It logs whole packets, whose payloads may hold Secrets: the hook logs instead.
		Logger:                 slog.New(slog.DiscardHandler),
		SysTopicResendInterval: int64((24 * time.Hour).Seconds()),
	})
	if err := b.server.AddHook(&hook{broker: b, rules: rules{source: o.Source}}, nil); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if o.Registerer != nil {
		b.register(o.Registerer)
	}
	return b, nil
}

func (b *Broker) register(r prometheus.Registerer) {
	r.MustRegister(b.slow)
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
	for {
		conn, acceptErr := l.Accept()
		if acceptErr != nil {
			if ctx.Err() == nil && !errors.Is(acceptErr, net.ErrClosed) {
				var temporary interface{ Timeout() bool }
				if errors.As(acceptErr, &temporary) && temporary.Timeout() {
					continue
				}
				err = fmt.Errorf("broker: accepting: %w", acceptErr)
			}
			break
		}
		if !b.track(conn) {
			conn.Close()
			continue
		}
		clients.Go(func() {
			defer b.untrack(conn)
			b.serve(ctx, conn)
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

func (b *Broker) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	secured := tls.Server(conn, b.o.TLS)
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	err := secured.HandshakeContext(hctx)
	cancel()
	if err != nil {
		b.o.Logger.Info("connection refused", "remote", conn.RemoteAddr().String(), "error", err)
		return
	}
	secured.SetDeadline(time.Now().Add(handshakeTimeout)) // until CONNECT; then the keep-alive's
	name := secured.ConnectionState().PeerCertificates[0].Subject.CommonName
	p := newPeer(secured, conn, name, b.o.MaxPending, func() {
		b.slow.Inc()
		b.o.Logger.Warn("client too slow", "name", name, "remote", conn.RemoteAddr().String())
	})
	var writer sync.WaitGroup
	writer.Go(p.send)
	b.server.EstablishConnection("tls", p)
	p.Close()
	writer.Wait()
}

func (b *Broker) track(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns == nil {
		return false
	}
	b.conns[conn] = struct{}{}
	return true
}

func (b *Broker) untrack(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, conn)
}

func (b *Broker) closeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.conns {
		conn.Close()
	}
	b.conns = nil
}

// hook puts the rules into the broker.
type hook struct {
	mqtt.HookBase
	broker *Broker
	rules  rules
}

func (h *hook) ID() string { return "atoll" }

func (h *hook) Provides(b byte) bool {
	switch b {
	case mqtt.OnPacketRead, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish, mqtt.OnSessionEstablished,
		mqtt.OnDisconnect, mqtt.OnACLCheck, mqtt.OnPublish, mqtt.OnPublishDropped, mqtt.OnPacketEncode:
		return true
	}
	return false
}

// nameOf is the common name of a client's certificate.
func nameOf(cl *mqtt.Client) string {
	if p, ok := cl.Net.Conn.(*peer); ok {
		return p.name
	}
	return ""
}

// OnPacketRead makes every session a clean one that ends with its connection,
// and sends no topic aliases, whatever the client asks for.
func (h *hook) OnPacketRead(_ *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.FixedHeader.Type == packets.Connect {
		p.Connect.Clean = true
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
		p.Properties.TopicAliasMaximum = 0
	}
	if p.FixedHeader.Type == packets.Disconnect { // which may change the expiry, too
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, false
	}
	return p, nil
}

// OnConnect refuses what the broker does not do, and who may not be who.
func (h *hook) OnConnect(cl *mqtt.Client, p packets.Packet) error {
	name, refusal := nameOf(cl), ""
	switch {
	case !h.rules.mayConnect(name, p.Connect.ClientIdentifier):
		refusal = "client id not allowed for this certificate"
	case p.Connect.WillFlag:
		refusal = "wills are not allowed"
	default:
		return nil
	}
	h.broker.o.Logger.Warn("client refused", "name", name, "client_id", p.Connect.ClientIdentifier, "remote", cl.Net.Remote, "reason", refusal)
	code := packets.ErrNotAuthorized
	code.Reason = refusal
	cl.Properties.Will = mqtt.Will{}
	h.broker.server.SendConnack(cl, code, false, nil)
	return code
}

// OnConnectAuthenticate: the TLS handshake has proven the name, OnConnect has
// decided.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, p packets.Packet) bool {
	return h.rules.mayConnect(nameOf(cl), p.Connect.ClientIdentifier)
}

// OnSessionEstablish switches off the library's count of what a client has not
// acknowledged: it keeps packet ids of both directions in one table, loses
// count when they collide, and then holds messages back for ever. MaxPending
// bounds a slow client instead.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	cl.State.Inflight.ResetSendQuota(0)
}

func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	h.broker.o.Logger.Info("client connected", "name", nameOf(cl), "client_id", cl.ID, "remote", cl.Net.Remote)
}

func (h *hook) OnDisconnect(cl *mqtt.Client, err error, _ bool) {
	reason := "closed"
	if cause := cl.StopCause(); cause != nil {
		reason = cause.Error()
	} else if err != nil {
		reason = err.Error()
	}
	h.broker.o.Logger.Info("client disconnected", "name", nameOf(cl), "client_id", cl.ID, "reason", reason)
}

// OnACLCheck decides on publishes, on subscriptions, and again on each message
// that a subscription brings.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	name := nameOf(cl)
	var allowed bool
	if write {
		allowed = h.rules.mayPublish(name, topic)
	} else {
		allowed = h.rules.mayRead(name, topic)
	}
	if !allowed {
		h.broker.o.Logger.Warn("topic refused", "name", name, "topic", topic, "write", write)
		return false
	}
	// The library drops what exceeds its table of unacknowledged messages
	// without telling anybody.
	if !write && cl.State.Inflight.Len() >= math.MaxUint16-1 {
		h.drop(cl)
	}
	return true
}

// OnPublish refuses messages that ask to be kept.
func (h *hook) OnPublish(_ *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	switch {
	case !p.FixedHeader.Retain:
		return p, nil
	case p.FixedHeader.Qos == 0:
		return p, packets.ErrRejectPacket
	default:
		return p, packets.ErrRetainNotSupported
	}
}

// OnPublishDropped: a message that one client does not get must not pass
// unnoticed. It is disconnected, and resync makes it good.
func (h *hook) OnPublishDropped(cl *mqtt.Client, _ packets.Packet) { h.drop(cl) }

func (h *hook) drop(cl *mqtt.Client) {
	if p, ok := cl.Net.Conn.(*peer); ok && !cl.Closed() {
		p.slow()
		p.cut()
		cl.Stop(packets.ErrQuotaExceeded)
	}
}

// OnPacketEncode tells clients the limits that the library keeps to itself.
func (h *hook) OnPacketEncode(_ *mqtt.Client, p packets.Packet) packets.Packet {
	if p.FixedHeader.Type == packets.Connack && p.ReasonCode < packets.ErrUnspecifiedError.Code {
		p.Properties.MaximumPacketSize = h.broker.o.MaxPacket
		p.Properties.RetainAvailable, p.Properties.RetainAvailableFlag = 0, true
	}
	return p
}
