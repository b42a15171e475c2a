package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/work"

	"github.com/eclipse/paho.golang/packets"
)

func TestI7RefusedPublishesAreAnswered(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	c := b.rawAgent(t, "c1")
	// On one connection: a refusal is an answer, not the end of the client.
	for i, topic := range []string{agentTopic("c2"), sourceTopic("c1"), "$SYS/broker/version", "$share/g/" + agentTopic(
		"c1"), "x"} {
		answer := c.publish(&packets.Publish{Topic: topic, QoS: 1, PacketID: uint16(i + 1), Payload: []byte("x")})
		if ack, ok := answer.(*packets.Puback); !ok || ack.ReasonCode != packets.PubackNotAuthorized ||
			ack.PacketID != uint16(i+1) {
			t.Fatalf("publish to %s: %+v", topic, answer)
		}
	}
	for _, filter := range []string{sourceTopic("c2"), "#"} {
		if code := c.subscribe(filter); code != packets.SubackNotauthorized {
			t.Errorf("subscribe to %s: 0x%02x", filter, code)
		}
	}
	user := []packets.User{{Key: "ce-metadata", Value: strings.Repeat("x", 1000)}}
	answer := c.publish(&packets.Publish{Topic: agentTopic("c1"), QoS: 1, PacketID: 9, Properties: &packets.Properties{
		User: user}})
	if ack, ok := answer.(*packets.Puback); !ok || ack.ReasonCode != 0 || len(ack.Properties.User) > 0 {
		t.Errorf("a publish that is allowed: %+v", answer)
	}
}

func TestI7ServicesHaveTheRightsOfTheTable(t *testing.T) {
	b := startBroker(t, BrokerOptions{Services: map[string]Service{
		"system:sentinel": {Publish: []string{"events/work"}},
		"system:adapter":  {Read: []string{"events/#"}},
	}})
	connect := func(name, id string) (*rawClient, error) {
		c, ack, err := b.raw(t, b.ca.client(t, name), &packets.Connect{ClientID: id, CleanStart: true})
		if err == nil && ack.ReasonCode != 0 {
			err = errors.New("refused")
		}
		return c, err
	}
	for _, c := range []struct{ name, id string }{
		{"system:maestro", "maestro"}, {"system:sentinel", "adapter"}, {"system:sentinel", "sentinel-agent-client"},
		{"system:sentinel", ""},
	} {
		if _, err := connect(c.name, c.id); err == nil {
			t.Errorf("%s may connect as %q", c.name, c.id)
		}
	}
	sentinel, err := connect("system:sentinel", "sentinel-2")
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]byte{"events/work": 0, "events/other": packets.PubackNotAuthorized,
		sourceTopic("c1"): packets.PubackNotAuthorized} {
		if ack, ok := sentinel.publish(&packets.Publish{Topic: topic, QoS: 1, PacketID: 1}).(*packets.Puback); !ok ||
			ack.ReasonCode != want {
			t.Errorf("sentinel, %s: %+v", topic, ack)
		}
	}
	adapter, err := connect("system:adapter", "adapter")
	if err != nil {
		t.Fatal(err)
	}
	for filter, allowed := range map[string]bool{"events/+": true, "$share/g/events/#": true, "#": false,
		"+/work": false, "$share/g/#": false, "$share/events/x": false} {
		if code := adapter.subscribe(filter); (code < 0x80) != allowed {
			t.Errorf("adapter, %s: 0x%02x", filter, code)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		allowed, filter string
		want            bool
	}{
		{"a/+/b", "a/x/b", true}, {"a/+/b", "a/+/b", true}, {"a/+/b", "a/#", false}, {"a/+/b", "a/x/b/c", false},
		{"a/+/b", "a/x", false},
		{"a/#", "a/b/c", true}, {"a/#", "a/#", true}, {"a/#", "b", false}, {"#", "$SYS/x", false},
		{"+/x", "$SYS/x", false}, {"a", "", false}, {"a/+", "a/", false},
	} {
		if got := covers(c.allowed, c.filter); got != c.want {
			t.Errorf("covers(%q, %q) = %v", c.allowed, c.filter, got)
		}
	}
}

func TestI7AnExpiredCertificateEndsItsConnection(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	config := b.ca.client(t, "c1")
	var c *rawClient
	for life := 1500 * time.Millisecond; c == nil; life *= 2 { // a busy machine may connect only after the expiry
		config.Certificates[0] = b.ca.certificateUntil(t, "c1", time.Now().Add(life))
		connected, ack, err := b.raw(t, config, &packets.Connect{ClientID: agentClientID("c1"), CleanStart: true})
		switch {
		case err == nil && ack.ReasonCode == 0:
			c = connected
		case life > hangLimit/2:
			t.Fatalf("%v %+v", err, ack)
		}
	}
	if p := c.next(); p != nil {
		t.Errorf("got %+v", p)
	}
}

func TestABrokerWithoutClientCertificatesIsRefused(t *testing.T) {
	ca := newAuthority(t)
	for name, config := range map[string]*tls.Config{
		"no TLS":          nil,
		"no certificates": {},
		"not verified":    {ClientAuth: tls.RequireAnyClientCert, ClientCAs: ca.pool()},
		"any CA":          {ClientAuth: tls.RequireAndVerifyClientCert},
	} {
		if _, err := NewBroker(BrokerOptions{TLS: config}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestTheBrokerAnnouncesItsLimits(t *testing.T) {
	b := startBroker(t, BrokerOptions{MaxPacket: 100_000})
	small, never := uint32(50_000), uint32(3600)
	_, ack, err := b.raw(t, b.ca.client(t, "c1"), &packets.Connect{ClientID: agentClientID("c1"), KeepAlive: 3600,
		Properties: &packets.Properties{SessionExpiryInterval: &never}})
	if err != nil || ack.ReasonCode != 0 {
		t.Fatalf("%v %+v", err, ack)
	}
	if p := ack.Properties; *p.MaximumPacketSize != 100_000 || *p.RetainAvailable != 0 || *p.MaximumQOS != 1 ||
		p.ServerKeepAlive == nil || *p.ServerKeepAlive != maxKeepAlive || p.SessionExpiryInterval == nil ||
		*p.SessionExpiryInterval != 0 {
		t.Errorf("CONNACK %+v", p)
	}
	// A message that it does not take would be lost without a trace.
	if _, ack, err := b.raw(t, b.ca.client(t, "c2"), &packets.Connect{ClientID: agentClientID("c2"),
		Properties: &packets.Properties{MaximumPacketSize: &small}}); err == nil && ack.ReasonCode < 0x80 {
		t.Error("a client that takes less than the broker is let in")
	}
}

// One server receives all events of fifty agents that publish at once, and the broker
// disconnects no client.
func TestI6ManyPublishersToOneSubscriberLoseNoEvent(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const agents, each = 50, 200
		var mu sync.Mutex
		next := map[string]int{}
		var left sync.WaitGroup
		left.Add(agents * each)
		lost := make(chan struct{}, 100)
		b.connect("system:maestro", ClientOptions{ClientID: "maestro",
			Subscriptions: []string{Topic{Source: "maestro", Consumer: AllConsumers,
				Kind: AgentEvents}.Share().Filter()},
			OnConnected: func(ctx context.Context) { context.AfterFunc(ctx, func() { lost <- struct{}{} }) },
			Handler: func(_ context.Context, m Message) {
				m.Ack()
				mu.Lock()
				defer mu.Unlock()
				if m.Event.ID != fmt.Sprint(next[m.Topic]) {
					t.Errorf("%s: message %d is %s", m.Topic, next[m.Topic], m.Event.ID)
				}
				next[m.Topic]++
				left.Done()
			}})
		for i := range agents {
			name := fmt.Sprintf("c%d", i)
			c := b.connect(name, ClientOptions{})
			go func() {
				for n := range each {
					if err := c.PublishAsync(t.Context(), agentTopic(work.Consumer(name)), testEvent(fmt.Sprint(n)),
						func(error) {}); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		done := make(chan struct{})
		go func() { left.Wait(); close(done) }()
		select {
		case <-done:
		case <-lost:
			t.Fatal("the server was disconnected")
		case <-time.After(hangLimit):
			t.Fatalf("received %v", next)
		}
	})
}

// Two replicas share the events of all consumers; one replica receives all events of a
// consumer, in order.
func TestOneReplicaReceivesAConsumerInOrder(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	const agents, each = 8, 50
	received := make(chan [2]string, agents*each)
	for _, id := range []string{"maestro-a", "maestro-b"} {
		b.connect("system:maestro", ClientOptions{ClientID: id,
			Subscriptions: []string{Topic{Source: "maestro", Consumer: AllConsumers,
				Kind: AgentEvents}.Share().Filter()},
			Handler: func(_ context.Context, m Message) { m.Ack(); received <- [2]string{id, m.Topic} }})
	}
	for i := range agents {
		name := fmt.Sprintf("c%d", i)
		c := b.connect(name, ClientOptions{})
		for range each {
			if err := c.Publish(t.Context(), agentTopic(work.Consumer(name)), testEvent("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	by := map[string]map[string]bool{}
	for range agents * each {
		m := receive(t, received)
		if by[m[1]] == nil {
			by[m[1]] = map[string]bool{}
		}
		by[m[1]][m[0]] = true
	}
	for topic, replicas := range by {
		if len(replicas) != 1 {
			t.Errorf("%s was received by %v", topic, replicas)
		}
	}
}
