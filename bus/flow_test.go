package bus

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"pgregory.net/rapid"
)

// A client with a Receive Maximum of three gets three messages, and the next ones as it
// acknowledges; other packets are not delayed.
func TestTheBrokerRespectsAReceiveMaximum(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const maximum, messages = 3, 50
		three := uint16(maximum)
		c, ack, err := b.raw(t, b.ca.client(t, "c1"), &packets.Connect{ClientID: agentClientID("c1"), CleanStart: true,
			Properties: &packets.Properties{ReceiveMaximum: &three}})
		if err != nil || ack.ReasonCode != 0 {
			t.Fatalf("%v %+v", err, ack)
		}
		if code := c.subscribe(sourceTopic("c1")); code != 1 {
			t.Fatalf("subscribing: 0x%02x", code)
		}
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		acks := make(chan error, messages)
		for i := range messages {
			if err := server.PublishAsync(t.Context(), sourceTopic("c1"), testEvent(fmt.Sprint(i)),
				func(err error) { acks <- err }); err != nil {
				t.Fatal(err)
			}
		}
		for range messages {
			if err := receive(t, acks); err != nil { // the publisher does not wait for the slow subscriber
				t.Fatal(err)
			}
		}
		var waiting []uint16
		for got := 0; got < messages; {
			p, ok := c.next().(*packets.Publish)
			if !ok {
				t.Fatalf("no message after %d", got)
			}
			if e, err := decode(p); err != nil || e.ID != fmt.Sprint(got) {
				t.Fatalf("message %d is %q, %v", got, e.ID, err)
			}
			got++
			if waiting = append(waiting, p.PacketID); len(waiting) < maximum && got < messages {
				continue
			}
			if got == maximum {
				c.expectNoPacket()
			}
			// By turns all and one of them.
			n := 1
			if got%2 == 0 {
				n = len(waiting)
			}
			for _, id := range waiting[:n] {
				if _, err := (&packets.Puback{PacketID: id, Properties: &packets.Properties{}}).WriteTo(
					c.conn); err != nil {
					t.Fatal(err)
				}
			}
			waiting = waiting[n:]
		}
	})
}

// expectNoPacket but the answer to a ping.
func (c *rawClient) expectNoPacket() {
	c.t.Helper()
	if _, err := packets.NewControlPacket(packets.PINGREQ).WriteTo(c.conn); err != nil {
		c.t.Fatal(err)
	}
	if _, ok := c.next().(*packets.Pingresp); !ok {
		c.t.Fatal("no answer to a ping")
	}
	c.conn.SetReadDeadline(time.Now().Add(150 * time.Millisecond))
	var one [1]byte
	if n, err := c.conn.Read(one[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("more than the client takes: %v", err)
	}
	c.conn.SetReadDeadline(time.Now().Add(hangLimit))
}

// For random packets and acknowledgements, flow loses, adds and reorders no packet, and
// never exceeds the client's Receive Maximum.
func TestFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := flow{maximum: rapid.IntRange(0, 4).Draw(t, "maximum")}
		var sent, came []string // of QoS 1
		acknowledged, others, othersCame := 0, 0, 0
		take := func(out []byte) {
			for len(out) > 0 {
				n := packetLength(out)
				if packet := out[:n]; needsAcknowledgement(packet) {
					came = append(came, string(packet))
				} else {
					othersCame++
				}
				out = out[n:]
			}
			if under := len(came) - acknowledged; f.maximum > 0 && under > f.maximum {
				t.Fatalf("%d under way, the maximum is %d", under, f.maximum)
			}
		}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(came) > acknowledged && rapid.Bool().Draw(t, "acknowledge") {
				acknowledged++
				take(f.acknowledge(nil))
				continue
			}
			var b bytes.Buffer
			for range rapid.IntRange(1, 3).Draw(t, "packets") { // the library joins them
				size := rapid.SampledFrom([]int{0, 100, 127, 128, 20_000}).Draw(t, "size")
				switch rapid.IntRange(0, 2).Draw(t, "kind") {
				case 0:
					(&packets.Puback{PacketID: 7, Properties: &packets.Properties{}}).WriteTo(&b)
					others++
				case 1:
					(&packets.Publish{Topic: "t", QoS: 0, Payload: make([]byte, size),
						Properties: &packets.Properties{}}).WriteTo(&b)
					others++
				default:
					at := b.Len()
					(&packets.Publish{Topic: fmt.Sprintf("t%d", i), QoS: 1, PacketID: uint16(len(sent) + 1),
						Payload: make([]byte, size), Properties: &packets.Properties{}}).WriteTo(&b)
					sent = append(sent, string(b.Bytes()[at:]))
				}
			}
			take(f.appendSendable(nil, b.Bytes()))
		}
		for acknowledged < len(came) {
			acknowledged++
			take(f.acknowledge(nil))
		}
		if f.bytes != 0 || len(f.held) != 0 || othersCame != others || fmt.Sprint(came) != fmt.Sprint(sent) {
			t.Fatalf("%d of %d messages and %d of %d others came; %d bytes are held", len(came), len(sent), othersCame,
				others, f.bytes)
		}
	})
}
