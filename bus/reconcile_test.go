package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
)

// A hello requests the resources of some slots, or, as those of earlier versions, of all.
func TestAHelloWantsTheResourcesOfItsSlots(t *testing.T) {
	const slots = 32
	wanted := 0
	for i := range 1000 {
		id := fmt.Sprint("r", i)
		h := Hello{Of: slots, Slots: []int{3, 7}}
		if slot := SlotOf(id, slots); h.Wants(id) != (slot == 3 || slot == 7) {
			t.Fatalf("%s of slot %d: %v", id, slot, h.Wants(id))
		}
		if h.Wants(id) {
			wanted++
		}
		if !(Hello{}).Wants(id) || (Hello{Of: slots}).Wants(id) {
			t.Fatal("a hello without slots wants all, one of a replica that has none wants nothing")
		}
	}
	if wanted < 30 || wanted > 100 {
		t.Errorf("two slots of 32 have %d resources of 1000", wanted)
	}
}

// The event of the reference, section 2.3.
func TestAReconcileEventOnTheWire(t *testing.T) {
	e := Event{
		ID:              "0199",
		Source:          "hyperfleet-sentinel",
		Type:            "com.redhat.hyperfleet.cluster.reconcile",
		DataContentType: "application/json",
		Key:             "0198",
		Extensions:      map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		Data:            []byte(`{"id":"0198","kind":"Cluster","href":"/api/hyperfleet/v1/clusters/0198","generation":3}`),
	}
	p, err := e.structuredPacket(EventTopic("clusters"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"specversion":"1.0","type":"com.redhat.hyperfleet.cluster.reconcile","source":"hyperfleet-sentinel",` +
		`"id":"0199","datacontenttype":"application/json",` +
		`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",` +
		`"data":{"id":"0198","kind":"Cluster","href":"/api/hyperfleet/v1/clusters/0198","generation":3}}`
	if got := string(p.Payload); got != want {
		t.Errorf("payload\n%s\nwant\n%s", got, want)
	}
	if p.Topic != "clm/events/clusters" || p.Properties.ContentType != "application/cloudevents+json; charset=utf-8" ||
		p.QoS != 1 {
		t.Errorf("%+v %+v", p, p.Properties)
	}
	back, err := decode(p)
	if diff := cmp.Diff(e, back); diff != "" || err != nil {
		t.Errorf("%v (-sent +received):\n%s", err, diff)
	}
}

func TestStructuredEventsSurviveTheWire(t *testing.T) {
	for name, e := range map[string]Event{
		"no data": {ID: "1", Source: "s", Type: "t", DataContentType: "application/json"},
		"a string": {ID: "1", Source: "s", Type: "t", DataContentType: "application/json",
			Data: []byte(`"<a>\u0000"`)},
		"binary": {ID: "1", Source: "s", Type: "t", DataContentType: "application/octet-stream",
			Data: []byte{0, 1, 255}},
		"subject": {ID: "1", Source: "s", Type: "t", Subject: `a"b`, DataContentType: "application/cloudevents+json",
			DataSchema: "urn:x", Data: []byte("1")},
		"heartbeat": {ID: "1", Type: Heartbeat, DataContentType: "application/json"},
	} {
		p, err := e.structuredPacket("a")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := decode(p)
		if diff := cmp.Diff(e, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-sent +received):\n%s", name, err, diff)
		}
	}
	for name, e := range map[string]Event{
		"data that is no JSON":    {ID: "1", Source: "s", Type: "t", Data: []byte("{")},
		"an extension named data": {ID: "1", Source: "s", Type: "t", Extensions: map[string]string{"data": "x"}},
		"no type":                 {ID: "1", Source: "s"},
	} {
		if p, err := e.structuredPacket("a"); !errors.Is(err, ErrNotAnEvent) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// A publish to a topic without subscribers fails with ErrNoSubscriber, for clients with
// RequireSubscriber.
func TestAnEventWithoutSubscribersIsAnError(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	strict := b.connect(clmName, ClientOptions{ClientID: "clm-sentinel", RequireSubscriber: true})
	lenient := b.connect(clmName, ClientOptions{ClientID: "clm-lenient"})
	e := Event{ID: "1", Source: "s", Type: "t", DataContentType: "application/json", Data: []byte("{}"), Key: "k"}
	publish := func(c *Client) error { return c.Publish(t.Context(), EventTopic("clusters"), e) }
	if err := publish(strict); !errors.Is(err, ErrNoSubscriber) {
		t.Errorf("without a subscriber: %v", err)
	}
	if err := publish(lenient); err != nil {
		t.Errorf("without RequireSubscriber: %v", err)
	}
	deliveries := make(chan string, 10)
	b.connect(adapterName, ClientOptions{ClientID: "adapter-1", Subscriptions: []string{EventFilter("a", "clusters")},
		Handler: func(_ context.Context, m Message) { m.Ack(); deliveries <- m.Event.ID }})
	if err := publish(strict); err != nil {
		t.Errorf("with a subscriber: %v", err)
	}
	if id := receive(t, deliveries); id != "1" {
		t.Errorf("received event %s", id)
	}
}

// Each subscription has one copy of each event; replicas share by key.
func TestReconcileEventsReachEachSubscriptionOnce(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	type delivery struct {
		subscription, replica string
		event                 Event
	}
	const events = 40
	deliveries := make(chan delivery, 10*events)
	for _, r := range []struct{ subscription, replica string }{{"cl-one", "1"}, {"cl-two", "1"}, {"cl-two", "2"}} {
		b.connect(adapterName, ClientOptions{ClientID: "adapter-" + r.subscription + "-" + r.replica,
			Subscriptions: []string{EventFilter(r.subscription, "clusters")},
			Handler: func(_ context.Context, m Message) {
				m.Ack()
				deliveries <- delivery{r.subscription, r.replica,
					m.Event}
			}})
	}
	sentinel := b.connect(clmName, ClientOptions{ClientID: "clm-sentinel", Structured: true})
	for i := range events {
		e := Event{ID: fmt.Sprint(i), Source: "s", Type: "t", DataContentType: "application/json", Data: []byte("{}"),
			Key: fmt.Sprint(i % 20)}
		if err := sentinel.Publish(t.Context(), EventTopic("clusters"), e); err != nil {
			t.Fatal(err)
		}
	}
	copies, replicas, keys := map[string]map[string]int{"cl-one": {}, "cl-two": {}}, map[string]bool{},
		map[string]string{}
	for range 2 * events {
		h := receive(t, deliveries)
		copies[h.subscription][h.event.ID]++
		if h.subscription == "cl-two" {
			replicas[h.replica] = true
			if before, ok := keys[h.event.Key]; ok && before != h.replica {
				t.Errorf("key %s went to two replicas", h.event.Key)
			}
			keys[h.event.Key] = h.replica
		}
	}
	for subscription, of := range copies {
		if len(of) != events {
			t.Errorf("%s received %d events of %d", subscription, len(of), events)
		}
	}
	if len(replicas) != 2 { // by chance one in 2^20
		t.Errorf("the events were shared by %v only", replicas)
	}
	if len(deliveries) > 0 {
		t.Error("an event came twice")
	}
}

func TestI7CLMPublishesEventsAndAdaptersReadThem(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	connect := func(name, id string) *rawClient {
		c, ack, err := b.raw(t, b.ca.client(t, name), &packets.Connect{ClientID: id, CleanStart: true})
		if err != nil || ack.ReasonCode != 0 {
			t.Fatalf("%s: %v %+v", name, err, ack)
		}
		return c
	}
	for _, c := range []struct {
		name, id, topic string
		write, want     bool
	}{
		{clmName, "clm", EventTopic("clusters"), true, true},
		{clmName, "clm-1", EventTopic("team/clusters"), true, true},
		{clmName, "clm", HelloTopic("clusters"), true, false},
		{clmName, "clm", HelloTopic("#"), false, true},
		{clmName, "clm", EventTopic("#"), false, false},
		{clmName, "clm", sourceTopic("c1"), true, false},
		{clmName, "clm", agentTopic("+"), false, false},
		{adapterName, "adapter-cl-x", HelloTopic("clusters"), true, true},
		{adapterName, "adapter-cl-x", EventTopic("clusters"), true, false},
		{adapterName, "adapter-cl-x", EventFilter("cl-x", "clusters"), false, true},
		{adapterName, "adapter-cl-x", HelloTopic("clusters"), false, false},
		{adapterName, "adapter-cl-x", sourceTopic("c1"), false, false},
		{maestroName, "maestro", EventTopic("clusters"), true, false},
		{maestroName, "maestro", EventTopic("clusters"), false, false},
	} {
		client := connect(c.name, c.id)
		var allowed bool
		if c.write {
			ack, ok := client.publish(&packets.Publish{Topic: c.topic, QoS: 1, PacketID: 1, Payload: []byte("{}")}).(*packets.Puback)
			allowed = ok && ack.ReasonCode < 0x80
		} else {
			allowed = client.subscribe(c.topic) < 0x80
		}
		if allowed != c.want {
			t.Errorf("%s, %s, write %v: %v", c.name, c.topic, c.write, allowed)
		}
	}
	agent := b.rawAgent(t, "c1")
	if agent.subscribe(EventTopic("clusters")) < 0x80 {
		t.Error("an agent may subscribe to reconcile events")
	}
	if ack, ok := b.rawAgent(t, "c1").publish(&packets.Publish{Topic: EventTopic("clusters"), QoS: 1, PacketID: 1}).(*packets.Puback); ok &&
		ack.ReasonCode < 0x80 {
		t.Error("an agent may publish reconcile events")
	}
}
