package bus

import (
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// A client that connects again while the broker still ends its last connection keeps its new
// subscription.
func TestI6AClientThatReconnectsAtOnceReceivesEvents(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	config := b.ca.client(t, "c1")
	var last *rawClient
	for i := range 300 {
		if last != nil && i%2 == 0 {
			go last.conn.Close() // sometimes before, sometimes after the new one
		}
		c, ack, err := b.raw(t, config, &packets.Connect{ClientID: agentClientID("c1"), CleanStart: true})
		if err != nil || ack.ReasonCode != 0 {
			t.Fatalf("round %d: %v %+v", i, err, ack)
		}
		if code := c.subscribe(sourceTopic("c1")); code != 1 {
			t.Fatalf("round %d: subscribing: 0x%02x", i, code)
		}
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("x")); err != nil {
			t.Fatal(err)
		}
		if p, ok := c.next().(*packets.Publish); !ok {
			t.Fatalf("round %d: the connected client received %+v in place of the event", i, p)
		}
		last = c
	}
}
