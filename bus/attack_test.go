package bus

import (
	"context"
	"strings"
	"testing"

	"atoll.dev/api/work"

	"github.com/eclipse/paho.golang/packets"
	"pgregory.net/rapid"
)

// Every form of a topic or filter that is not the agent's own, each on a
// connection that may already have been ended for the last.
func TestI7NoSpellingOfATopicMatchesAnother(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	own := sourceTopic("c1")
	for _, filter := range []string{
		"+", "/#", "+/#", "sources/maestro/consumers/#", "sources/maestro/consumers/c1/#",
		"sources/maestro/consumers/c1/+", own + "/#", "/" + own, own + "/", own + "\x00",
		strings.ToUpper(own), strings.Replace(own, "c1", "C1", 1), strings.Replace(own, "c1", "c1 ",
			1), strings.Replace(own, "c1", "c1/c2", 1), strings.Replace(own, "/", "//", 1),
		"$share/" + own, "$share//" + own, "$share/g", "$share/g/", "$share/+/" + own, "$share/g/$share/h/" + own,
		"$SHARE/g/" + own, "$share/g/" + sourceTopic("c2"),
		"$queue/" + own, "$SYS", "$SYS/broker/clients/+", "+/broker/#", "$delayed/1/" + own, "$aws/things/#",
		"sources/maestro/sourceevents", "sources/clusters/sourceevents", "sources/clusters/agentevents",
		"$share/statussubscribers/sources/clusters/agentevents",
		"sources/maestro/clusters/c1/sourceevents", "sources/maestro/clusters/c1/spec",
		"sources/maestro/clusters/+/status", "sources/maestro/specresync", "clusters/c1/statusresync",
		"sources/maestro/consumers/c1/agentevents", "$share/g/" + agentTopic("+"),
	} {
		if code := b.rawAgent(t, "c1").subscribe(filter); code < 0x80 {
			t.Errorf("an agent may read %q", filter)
		}
	}
	for _, topic := range []string{
		"", "+", "#", agentTopic("+"), agentTopic("c2"), agentTopic("c1") + "/", "/" + agentTopic("c1"),
		agentTopic("c1") + "\x00", strings.ToUpper(agentTopic("c1")),
		"$share/g/" + agentTopic("c1"), "$SYS/x", "$SYS/broker/version", "sources/clusters/agentevents",
		"sources/maestro/sourceevents", "sources/clusters/sourceevents",
		"sources/maestro/clusters/c1/status", "clusters/c1/specresync", sourceTopic("c1"), sourceTopic("c2"),
		sourceTopic("+"),
	} {
		for _, qos := range []byte{1, 2} {
			answer := b.rawAgent(t, "c1").publish(&packets.Publish{Topic: topic, QoS: qos, PacketID: 1,
				Payload: []byte("x")})
			if rec, ok := answer.(*packets.Pubrec); ok && rec.ReasonCode >= 0x80 {
				continue
			}
			if !refused(answer) {
				t.Errorf("an agent may write %q with QoS %d: %+v", topic, qos, answer)
			}
		}
	}
}

// A filter stays refused beside an allowed one.
func TestI7ARefusedFilterStaysRefusedBesideAnAllowedOne(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	c := b.rawAgent(t, "c1")
	s := &packets.Subscribe{PacketID: 9, Properties: &packets.Properties{}, Subscriptions: []packets.SubOptions{
		{Topic: "#", QoS: 1}, {Topic: sourceTopic("c1"), QoS: 1}, {Topic: sourceTopic("c2"), QoS: 1},
		{Topic: "$share/g/" + sourceTopic("c2"), QoS: 1}}}
	if _, err := s.WriteTo(c.conn); err != nil {
		t.Fatal(err)
	}
	ack, ok := c.next().(*packets.Suback)
	if !ok || len(ack.Reasons) != 4 || ack.Reasons[0] < 0x80 || ack.Reasons[1] != 1 || ack.Reasons[2] < 0x80 ||
		ack.Reasons[3] < 0x80 {
		t.Fatalf("%+v", ack)
	}
	for _, id := range []string{"c2", "c1"} {
		if err := server.Publish(t.Context(), sourceTopic(work.Consumer(id)), testEvent(id)); err != nil {
			t.Fatal(err)
		}
	}
	if p, ok := c.next().(*packets.Publish); !ok || p.Topic != sourceTopic("c1") {
		t.Errorf("the agent of c1 received %+v", p)
	}
}

// Ways around the name of a topic: aliases, wills of every kind, a second CONNECT, retained
// messages.
func TestI7ProtocolFeaturesGiveNoRights(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	alias, zero, delay := uint16(7), uint16(0), uint32(1)
	for name, p := range map[string]*packets.Publish{
		"an alias of another's topic": {Topic: agentTopic("c2"), QoS: 1, PacketID: 1, Properties: &packets.Properties{
			TopicAlias: &alias}},
		"an alias that was never given": {QoS: 1, PacketID: 1, Properties: &packets.Properties{TopicAlias: &alias}},
		"the alias 0": {Topic: agentTopic("c1"), QoS: 1, PacketID: 1, Properties: &packets.Properties{
			TopicAlias: &zero}},
		"retained for another": {Topic: agentTopic("c2"), QoS: 1, PacketID: 1, Retain: true},
		"retained, for ever":   {Topic: sourceTopic("c1"), QoS: 1, PacketID: 1, Retain: true},
	} {
		if answer := b.rawAgent(t, "c1").publish(p); !refused(answer) {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	received := b.connectListener(t)
	for name, will := range map[string]*packets.Connect{
		"its own topic":   {WillTopic: agentTopic("c1")},
		"another's topic": {WillTopic: agentTopic("c2")},
		"later": {WillTopic: agentTopic("c2"), WillProperties: &packets.Properties{
			WillDelayInterval: &delay}},
		"retained":      {WillTopic: sourceTopic("c2"), WillRetain: true},
		"to the broker": {WillTopic: "$SYS/x"},
	} {
		will.ClientID, will.WillFlag, will.WillMessage, will.WillQOS = agentClientID("c1"), true, []byte("x"), 1
		if will.WillProperties == nil {
			will.WillProperties = &packets.Properties{}
		}
		if _, ack, err := b.raw(t, b.ca.client(t, "c1"), will); err == nil && ack.ReasonCode < 0x80 {
			t.Errorf("a will, %s: taken", name)
		}
	}
	// An admitted client connects again, with a will and as another client.
	c := b.rawAgent(t, "c1")
	again := &packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: agentClientID("c2"), KeepAlive: 30,
		Properties: &packets.Properties{},
		WillFlag:   true, WillTopic: agentTopic("c2"), WillMessage: []byte(
			"x"), WillQOS: 1, WillProperties: &packets.Properties{}}
	if _, err := again.WriteTo(c.conn); err != nil {
		t.Fatal(err)
	}
	if answer := c.next(); !refused(answer) {
		t.Errorf("a second CONNECT: %+v", answer)
	}
	agent := b.connect("c3", ClientOptions{})
	if err := agent.Publish(t.Context(), agentTopic("c3"), testEvent("last")); err != nil {
		t.Fatal(err)
	}
	if m := receive(t, received); m.Event.ID != "last" {
		t.Errorf("the server received %+v", m)
	}
}

// connectListener subscribes to the events of all agents, as Maestro does.
func (b *testBroker) connectListener(t *testing.T) <-chan Message {
	received := make(chan Message, 100)
	b.connect("system:maestro", ClientOptions{ClientID: "maestro", Subscriptions: []string{
		Topic{Source: "maestro", Consumer: AllConsumers, Kind: AgentEvents}.Share().Filter()},
		Handler: func(_ context.Context, m Message) { m.Ack(); received <- m }})
	return received
}

// matches is MQTT 5, section 4.7, word by word.
func matches(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") != strings.HasPrefix(filter, "$") {
		return false
	}
	f, t := strings.Split(filter, "/"), strings.Split(topic, "/")
	for i, level := range f {
		switch {
		case level == "#":
			return i == len(f)-1
		case i >= len(t) || level != "+" && level != t[i]:
			return false
		}
	}
	return len(f) == len(t)
}

var anyFilter = rapid.Custom(func(t *rapid.T) string {
	levels := rapid.SliceOfN(rapid.SampledFrom([]string{"sources", "maestro", "consumers", "c1", "sourceevents",
		"agentevents", "+", "#", "", "$SYS"}), 1, 6).Draw(t, "levels")
	return strings.Join(levels, "/")
})

// A granted filter is within the filters of the table.
func TestI7ACoveredFilterMatchesNothingMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		allowed, filter, topic := anyFilter.Draw(t, "allowed"), anyFilter.Draw(t, "filter"), anyFilter.Draw(t, "topic")
		if strings.ContainsAny(topic, "+#") {
			t.Skip()
		}
		if covers(allowed, filter) && matches(filter, topic) && !matches(allowed, topic) {
			t.Fatalf("%q covers %q, which matches %q", allowed, filter, topic)
		}
	})
}

// Two names never may use the same client id, so no client can end another's connection.
func TestI7AClientIDHasOneOwner(t *testing.T) {
	r := newRules("maestro", map[string]Service{"system:maestro": {}, "system:sentinel": {}, "system:c1": {}})
	name := rapid.SampledFrom([]string{"c1", "maestro", "maestro-2", "c1-agent-client", "maestro-agent-client",
		"system", "agent-client",
		"system:maestro", "system:sentinel", "system:c1", "system:unknown"})
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		id := strings.TrimPrefix(name.Draw(t, "base"), "system:") + rapid.SampledFrom(
			[]string{"", "-agent-client", "-2", "-2-agent-client", "-agent-client-2"}).Draw(t, "end")
		if a != b && r.mayConnect(a, id) && r.mayConnect(b, id) {
			t.Fatalf("%q is good for %q and %q", id, a, b)
		}
	})
}
