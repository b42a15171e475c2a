package maestro

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/bus"
	"atoll.dev/envelope"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/presence"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/store"
)

// Options are the parameters of New. DSN, HTTP and GRPC are needed, and Broker
// or Agents.
type Options struct {
	// WatchesPerCaller limits the REST watches that one account has open at the same time on this server; 0: no
	// limit. Watches of services that call for no account are not counted.
	WatchesPerCaller int

	DSN      string // of the database maestro; no other service reads it
	MaxConns int    // connections to the database; default 16, and a few more for the feed

	// Adapt changes the options of the store; nil: it opens as a service does. Tests of something else than the limits
	// of the store give store.Options.Patient.
	Adapt func(store.Options) store.Options

	// Envelope wraps the keys that encrypt the contents of Secrets in the database; nil: they are stored in clear.
	Envelope envelope.KMS

	// Broker is host:port of the MQTT broker; "" when all agents connect by gRPC.
	Broker         string
	BrokerTLS      *tls.Config
	BrokerKeys     func() (bus.Keys, error) // instead of BrokerTLS
	BrokerUsername string                   // for brokers that authenticate by name
	BrokerPassword string
	// BrokerClientID is unique for each server; default "maestro-" and a random UUID.
	BrokerClientID string
	BrokerTimes    struct{ KeepAlive, Dial time.Duration } // defaults: the bus's
	// Topics are the topics of this server and its agents; default bus.TopicsOf(SourceID).
	// When AgentEvents has no group, every replica receives every status: the result is
	// the same, and each replica does all the work.
	Topics bus.Topics
	// Connections is the number of connections that publish to the broker (default 1); each
	// publishes at most PublishRate events a second (default: no limit). MaxMessage is the
	// broker's limit in bytes, for brokers that do not announce it; larger works are refused.
	Connections int
	PublishRate float64
	MaxMessage  int
	BrokerGrace time.Duration // the server refuses writes when the broker is down for longer; default 1 s

	// SourceID is the source of events to agents, and the source in topics;
	// default "maestro".
	SourceID string

	HTTP, GRPC       net.Listener
	HTTPTLS, GRPCTLS *tls.Config // must ask for client certificates; nil: plain, for loopback only

	Agents    net.Listener // for agents that connect by gRPC; nil: no such agents
	AgentsTLS *tls.Config

	// Plain listeners have no TLS and do not authenticate callers. They replace the
	// TLS listeners or run beside them. New refuses a plain listener that is not on loopback.
	Plain struct{ HTTP, GRPC, Agents net.Listener }

	// ForeignGRPC and ForeignAgents are set when GRPCTLS and AgentsTLS verify clients
	// by a CA that is not the region's. A client with such a certificate is a user of
	// the rules, and never one of the region's services or agents.
	ForeignGRPC, ForeignAgents bool

	RulesFile string               // rules for further gRPC callers; "": none. Read again when the file changes
	Tokens    *rpcauth.KubeOptions // accepts tokens of this Kubernetes from gRPC callers; nil: no tokens
	Recheck   time.Duration        // interval between two authorizations of an open subscription; default 10 s

	PlainErrors bool // gRPC errors carry the text without a Kubernetes status
	AnySource   bool // a source may change bundles of another source

	// CORSOrigins are the origins, such as https://console.example.com, whose
	// pages may call the REST API; "*" is any. Default: none.
	CORSOrigins []string

	// MayCall reports whether an identity may call over REST. Default: no identity may.
	MayCall func(peer string) bool
	// MayCallGRPC reports whether an identity may act for all sources over gRPC.
	// Default: MayCall.
	MayCallGRPC func(peer string) bool

	Heartbeat     time.Duration // on streams to sources and agents; default 10 s
	Stuck         time.Duration // the server ends a stream whose client reads nothing for so long; default 15 s
	Window        int           // unacknowledged works sent to one consumer; default 1000
	RetryBase     time.Duration // pause before the first repetition of an unacknowledged work; doubles; default 1 s
	RetryMax      time.Duration // longest pause between repetitions; default 60 s
	DeleteMax     time.Duration // longest pause between repetitions of a deletion; default 5 min
	ShutdownGrace time.Duration // for requests under way; default 5 s

	CLM         presence.Lifecycle // receives the presence of agents; nil: no reports
	LostAfter   time.Duration      // an agent that is silent for so long is reported as lost; default 60 s
	ReportEvery time.Duration      // interval of reports about a present agent; default 60 s

	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
	Ops     *rest.Ops // New adds the readiness checks database, feed and broker; may be nil
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.BrokerGrace, time.Second)
	def(&o.Heartbeat, 10*time.Second)
	def(&o.Stuck, 15*time.Second)
	def(&o.Recheck, 10*time.Second)
	def(&o.ShutdownGrace, 5*time.Second)
	def(&o.LostAfter, 60*time.Second)
	def(&o.ReportEvery, 60*time.Second)
	if o.SourceID == "" {
		o.SourceID = "maestro"
	}
	if o.Topics == (bus.Topics{}) {
		o.Topics = bus.TopicsOf(o.SourceID)
	}
	if o.BrokerClientID == "" {
		o.BrokerClientID = "maestro-" + uuid.NewString()
	}
	if o.MayCall == nil {
		o.MayCall = func(string) bool { return false }
	}
	if o.MayCallGRPC == nil {
		o.MayCallGRPC = o.MayCall
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// streams reports whether agents connect by gRPC.
func (o *Options) streams() bool { return o.Agents != nil || o.Plain.Agents != nil }

// checkPlain refuses a listener without TLS that is not on loopback.
func (o *Options) checkPlain() error {
	plain := []net.Listener{o.Plain.HTTP, o.Plain.GRPC, o.Plain.Agents}
	for _, p := range []struct {
		l      net.Listener
		config *tls.Config
	}{{o.HTTP, o.HTTPTLS}, {o.GRPC, o.GRPCTLS}, {o.Agents, o.AgentsTLS}} {
		if p.config == nil {
			plain = append(plain, p.l)
		}
	}
	for _, l := range plain {
		if l == nil {
			continue
		}
		if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
			return fmt.Errorf("maestro: %s has neither TLS nor an identity, and is not on loopback", l.Addr())
		}
	}
	return nil
}
