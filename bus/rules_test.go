package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"

	"github.com/eclipse/paho.golang/packets"
)

// rawClient speaks MQTT as it likes.
type rawClient struct {
	t    *testing.T
	conn net.Conn
}

func (b *testBroker) raw(t *testing.T, config *tls.Config, connect *packets.Connect) (*rawClient, *packets.Connack,
	error) {
	t.Helper()
	conn, err := tls.Dial("tcp", b.addr, config)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(hangLimit))
	connect.ProtocolName, connect.ProtocolVersion = "MQTT", 5
	if connect.KeepAlive == 0 {
		connect.KeepAlive = 30
	}
	if connect.Properties == nil {
		connect.Properties = &packets.Properties{}
	}
	if _, err := connect.WriteTo(conn); err != nil {
		return nil, nil, err
	}
	p, err := packets.ReadPacket(conn)
	if err != nil {
		return nil, nil, err
	}
	ack, ok := p.Content.(*packets.Connack)
	if !ok {
		return nil, nil, errors.New("no CONNACK")
	}
	return &rawClient{t, conn}, ack, nil
}

func (b *testBroker) rawAgent(t *testing.T, name string) *rawClient {
	t.Helper()
	c, ack, err := b.raw(t, b.ca.client(t, name), &packets.Connect{ClientID: agentClientID(work.Consumer(name)),
		CleanStart: true})
	if err != nil || ack.ReasonCode != 0 {
		t.Fatalf("connecting as %s: %v %+v", name, err, ack)
	}
	return c
}

// publish writes a message and returns the broker's next packet, or nil when the broker
// closed the connection.
func (c *rawClient) publish(p *packets.Publish) any {
	if p.Properties == nil {
		p.Properties = &packets.Properties{}
	}
	if _, err := p.WriteTo(c.conn); err != nil {
		return nil
	}
	return c.next()
}

func (c *rawClient) subscribe(filter string) byte {
	c.t.Helper()
	s := &packets.Subscribe{PacketID: 9, Properties: &packets.Properties{}, Subscriptions: []packets.SubOptions{
		{Topic: filter, QoS: 1}}}
	if _, err := s.WriteTo(c.conn); err != nil {
		c.t.Fatal(err)
	}
	ack, ok := c.next().(*packets.Suback)
	if !ok {
		return 0xff // disconnected for it
	}
	return ack.Reasons[0]
}

func (c *rawClient) next() any {
	p, err := packets.ReadPacket(c.conn)
	if err != nil {
		return nil
	}
	return p.Content
}

func TestI7AnAgentReadsItsOwnTopicOnly(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	for _, filter := range []string{
		sourceTopic("c2"), agentTopic("c1"), agentTopic(
			"c2"), "#", "+/+/+/+/+", "sources/#", "sources/maestro/consumers/+/sourceevents",
		"sources/+/consumers/c1/sourceevents", "+/maestro/consumers/c1/sourceevents", "$share/g/" + sourceTopic("c1"),
		"$share/g/#", "$SYS/#", "$SYS/broker/version",
		Topic{Source: "maestro", Consumer: "c1", Kind: SourceEvents}.Share().Filter(), sourceTopic("c1") +
			"/x", "sources/other/consumers/c1/sourceevents", "clusters/maestro/consumers/c1/sourceevents",
	} {
		if code := b.rawAgent(t, "c1").subscribe(filter); code < 0x80 {
			t.Errorf("an agent may subscribe to %s", filter)
		}
	}
	if code := b.rawAgent(t, "c1").subscribe(sourceTopic("c1")); code != 1 {
		t.Errorf("an agent may not subscribe to its own topic: 0x%02x", code)
	}
}

func TestI7AnAgentPublishesToItsOwnTopicOnly(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	received := make(chan Message, 100)
	b.connect("system:maestro", ClientOptions{ClientID: "maestro",
		Subscriptions: []string{Topic{Source: "maestro", Consumer: AllConsumers, Kind: AgentEvents}.Share().Filter()},
		Handler:       func(_ context.Context, m Message) { m.Ack(); received <- m }})
	c := b.rawAgent(t, "c1")
	for i, topic := range []string{agentTopic("c2"), sourceTopic("c1"), sourceTopic("c2"),
		"sources/other/consumers/c1/agentevents", "x", agentTopic("c1") + "/x"} {
		answer := c.publish(&packets.Publish{Topic: topic, QoS: 1, PacketID: uint16(i + 1), Payload: []byte("x")})
		if ack, ok := answer.(*packets.Puback); ok && ack.ReasonCode != packets.PubackNotAuthorized {
			t.Errorf("publish to %s: reason 0x%02x", topic, ack.ReasonCode)
		} else if !ok {
			c = b.rawAgent(t, "c1")
		}
	}
	agent := b.connect("c3", ClientOptions{})
	if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("x")); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("our client, another's topic: %v", err)
	}
	if err := agent.Publish(t.Context(), agentTopic("c3"), testEvent("own")); err != nil {
		t.Errorf("our client, its own topic: %v", err)
	}
	if m := receive(t, received); m.Event.ID != "own" || len(received) != 0 {
		t.Errorf("the server received %+v and %d more", m, len(received))
	}
}

func TestI7WillsRetainedMessagesAndAliasesAreRefused(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	will := &packets.Connect{ClientID: agentClientID("c1"), WillFlag: true, WillTopic: agentTopic("c1"),
		WillMessage: []byte("x"), WillQOS: 1, WillProperties: &packets.Properties{}}
	if _, ack, err := b.raw(t, b.ca.client(t, "c1"), will); err == nil && ack.ReasonCode < 0x80 {
		t.Error("a will is taken")
	}
	if answer := b.rawAgent(t, "c1").publish(&packets.Publish{Topic: agentTopic("c1"), QoS: 1, PacketID: 1,
		Retain: true}); !refused(answer) {
		t.Errorf("a retained message: %+v", answer)
	}
	alias := uint16(1)
	if answer := b.rawAgent(t, "c1").publish(&packets.Publish{Topic: agentTopic("c1"), QoS: 1, PacketID: 1,
		Properties: &packets.Properties{TopicAlias: &alias}}); !refused(answer) {
		t.Errorf("a topic alias: %+v", answer)
	}
}

func refused(answer any) bool {
	switch a := answer.(type) {
	case nil:
		return true
	case *packets.Disconnect:
		return a.ReasonCode >= 0x80
	case *packets.Puback:
		return a.ReasonCode >= 0x80
	}
	return false
}

func TestI7AForeignClientIDIsRefusedAndItsOwnerStays(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	lost := make(chan struct{}, 10)
	victim := b.connect("c1", ClientOptions{OnConnected: func(ctx context.Context) {
		context.AfterFunc(ctx, func() { lost <- struct{}{} })
	}})
	for _, id := range []string{agentClientID("c1"), "maestro", "maestro-2", "c2", "", "c2-agent-client-2"} {
		if _, ack, err := b.raw(t, b.ca.client(t, "c2"), &packets.Connect{ClientID: id,
			CleanStart: true}); err == nil && ack.ReasonCode < 0x80 {
			t.Errorf("c2 may be %q", id)
		}
	}
	if _, ack, err := b.raw(t, b.ca.client(t, "system:maestro"), &packets.Connect{ClientID: agentClientID("c1"),
		CleanStart: true}); err == nil && ack.ReasonCode < 0x80 {
		t.Error("maestro may be an agent")
	}
	if err := victim.Publish(t.Context(), agentTopic("c1"), testEvent("still here")); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if len(lost) > 0 {
		t.Error("the owner was disconnected")
	}
}

func TestI7OnlyCertificatesOfTheRegionConnect(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	connect := func(config *tls.Config) error {
		_, ack, err := b.raw(t, config, &packets.Connect{ClientID: agentClientID("c1"), CleanStart: true})
		if err == nil && ack.ReasonCode >= 0x80 {
			err = errors.New("refused")
		}
		return err
	}
	if connect(&tls.Config{RootCAs: b.ca.pool(), ServerName: "broker"}) == nil {
		t.Error("without a certificate")
	}
	stranger := newAuthority(t).client(t, "c1")
	stranger.RootCAs = b.ca.pool()
	if connect(stranger) == nil {
		t.Error("with a certificate of another CA")
	}
	if connect(b.ca.client(t, "system:platform")) == nil {
		t.Error("as a service that has no business here")
	}
	if connect(b.ca.client(t, "")) == nil {
		t.Error("with an empty name")
	}
	if err := connect(b.ca.client(t, "c1")); err != nil {
		t.Errorf("with the right one: %v", err)
	}
}

func TestI7MaestroPublishesToConsumersAndReadsAgentsOnly(t *testing.T) {
	r := newRules("maestro", nil)
	for _, c := range []struct {
		name, topic string
		write, want bool
	}{
		{maestroName, sourceTopic("c1"), true, true},
		{maestroName, agentTopic("c1"), true, false},
		{maestroName, sourceTopic("+"), true, false},
		{maestroName, agentTopic("+"), false, true},
		{maestroName, Topic{Source: "maestro", Consumer: "+", Kind: AgentEvents}.Share().Filter(), false, true},
		{maestroName, agentTopic("c1"), false, true},
		{maestroName, "#", false, false},
		{maestroName, "sources/+/consumers/+/agentevents", false, false},
		{maestroName, sourceTopic("+"), false, false},
		{"system:platform", sourceTopic("c1"), true, false},
		{"system:platform", agentTopic("c1"), false, false},
		{"system:c1", agentTopic("system:c1"), true, false},
		{"+", agentTopic("+"), true, false},
		{"", agentTopic(""), true, false},
	} {
		got := r.mayRead(c.name, c.topic)
		if c.write {
			got = r.mayPublish(c.name, c.topic)
		}
		if got != c.want {
			t.Errorf("%s, %s, write %v: %v", c.name, c.topic, c.write, got)
		}
	}
}

func TestTheBrokerKeepsNoSession(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	expiry := uint32(3600)
	c, ack, err := b.raw(t, b.ca.client(t, "c1"), &packets.Connect{ClientID: agentClientID("c1"),
		Properties: &packets.Properties{SessionExpiryInterval: &expiry}})
	if err != nil || ack.ReasonCode != 0 {
		t.Fatalf("%v %+v", err, ack)
	}
	if code := c.subscribe(sourceTopic("c1")); code != 1 {
		t.Fatalf("0x%02x", code)
	}
	c.conn.Close()
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("while away")); err != nil {
		t.Fatal(err)
	}
	again, ack, err := b.raw(t, b.ca.client(t, "c1"), &packets.Connect{ClientID: agentClientID("c1"),
		Properties: &packets.Properties{SessionExpiryInterval: &expiry}})
	if err != nil || ack.SessionPresent {
		t.Fatalf("a session is present: %v %+v", err, ack)
	}
	if _, err := (&packets.Pingreq{}).WriteTo(again.conn); err != nil {
		t.Fatal(err)
	}
	if _, ok := again.next().(*packets.Pingresp); !ok {
		t.Error("something was kept for it")
	}
}

// The captured form of a spec event (reference: a create on MQTT).
func TestTheWireFormOfAnEvent(t *testing.T) {
	e := Event{
		ID: "0192", Source: "maestro", Type: "io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request",
		DataContentType: "application/json", Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]string{"clustername": "cluster1", "resourceid": "68ebf474", "resourceversion": "1"},
	}
	p, err := e.packet(sourceTopic("cluster1"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, u := range p.Properties.User {
		lines = append(lines, u.Key+"="+u.Value)
	}
	want := "ce-specversion=1.0 ce-id=0192 ce-source=maestro " +
		"ce-type=io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request " +
		"ce-clustername=cluster1 ce-resourceid=68ebf474 ce-resourceversion=1"
	if got := strings.Join(lines, " "); got != want || p.Properties.ContentType != "application/json" || p.QoS != 1 ||
		p.Retain || string(p.Payload) != `{"manifests":[]}` {
		t.Errorf("got  %s\nwant %s\n%+v", got, want, p)
	}
	back, err := decode(p)
	if err != nil || back.ID != e.ID || back.Extensions["resourceversion"] != "1" || string(back.Data) != string(
		e.Data) {
		t.Errorf("back: %+v %v", back, err)
	}
	structured := &packets.Publish{Properties: &packets.Properties{
		ContentType: "application/cloudevents+json; charset=utf-8"},
		Payload: []byte(
			`{"specversion":"1.0","id":"0192","source":"maestro","type":"t","resourceversion":1,` +
				`"time":"2026-01-02T03:04:05Z","data":{"manifests":[]}}`)}
	s, err := decode(structured)
	if err != nil || s.Extensions["resourceversion"] != "1" || string(s.Data) != `{"manifests":[]}` ||
		s.Time.Year() != 2026 {
		t.Errorf("structured: %+v %v", s, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("application/json", "ce-id", "1", []byte("{}"))
	f.Add("application/cloudevents+json", "", "", []byte(
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{}}`))
	f.Fuzz(func(t *testing.T, contentType, key, value string, payload []byte) {
		p := &packets.Publish{Payload: payload, Properties: &packets.Properties{ContentType: contentType,
			User: []packets.User{
				{Key: "ce-specversion", Value: "1.0"}, {Key: "ce-type", Value: "t"}, {Key: "ce-source", Value: "s"},
				{Key: key, Value: value}}}}
		e, err := decode(p)
		if err != nil {
			if !errors.Is(err, ErrNotAnEvent) {
				t.Errorf("error %v is no ErrNotAnEvent", err)
			}
			return
		}
		if _, err := e.packet("t"); err != nil && !errors.Is(err, ErrTooLarge) {
			t.Errorf("what was decoded cannot be sent: %v", err)
		}
		structured, err := e.structuredPacket("t")
		if err != nil {
			return // its data is no JSON, for example
		}
		back, err := decode(structured)
		if err != nil || back.ID != e.ID || back.Source != e.Source || back.Key != e.Key {
			t.Errorf("sent as JSON, %s, it comes back as %+v: %v", structured.Payload, back, err)
		}
	})
}
