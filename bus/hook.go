package bus

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// hook puts the rules into the broker.
type hook struct {
	mqtt.HookBase
	broker *Broker
	rules  rules
	seed   maphash.Seed
}

const (
	// maxKeepAlive is in seconds.
	maxKeepAlive = 60
	// maxUnacknowledged messages of one client, a little below the library's
	// limit because publishers look and then act.
	maxUnacknowledged = 60_000
	// maxQueued messages wait in the library for one client. They wait for the
	// processor only: what waits for the client is in its peer.
	maxQueued = 512
	// patience is how long others wait for a client that has too much to read.
	patience = 250 * time.Millisecond
)

func (h *hook) ID() string { return "atoll" }

func (h *hook) Provides(b byte) bool {
	switch b {
	case mqtt.OnPacketRead, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished,
		mqtt.OnDisconnect, mqtt.OnACLCheck, mqtt.OnPublish, mqtt.OnPublishDropped, mqtt.OnPacketEncode,
		mqtt.OnQosPublish, mqtt.OnPacketSent, mqtt.OnSelectSubscribers:
		return true
	}
	return false
}

// nameOf is the common name of a client's certificate.
func nameOf(cl *mqtt.Client) string {
	if p := peerOf(cl); p != nil {
		return p.name
	}
	return ""
}

func peerOf(cl *mqtt.Client) *peer {
	p, _ := cl.Net.Conn.(*peer)
	return p
}

// OnPacketRead makes every session a clean one that ends with its connection,
// and sends no topic aliases, whatever the client asks for.
func (h *hook) OnPacketRead(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.FixedHeader.Type == packets.Connect {
		p.Connect.Clean = true
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
		p.Properties.TopicAliasMaximum = 0
	}
	// The library ignores what begins with $SYS, without an answer. It answers
	// this, which nobody may publish to.
	if p.FixedHeader.Type == packets.Publish && strings.HasPrefix(p.TopicName, "$") {
		p.TopicName = "refused"
	}
	if peer := peerOf(cl); p.FixedHeader.Type == packets.Puback && peer != nil {
		peer.acknowledged()
	}
	if p.FixedHeader.Type == packets.Disconnect { // which may change the expiry, too
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, false
	}
	return p, nil
}

// OnConnect refuses what the broker does not do, and who may not be who.
func (h *hook) OnConnect(cl *mqtt.Client, p packets.Packet) error {
	if refusal := h.admit(cl, p); refusal != "" {
		h.broker.o.Logger.Warn("client refused", "name", nameOf(cl), "client_id", p.Connect.ClientIdentifier, "remote",
			cl.Net.Remote, "reason", refusal)
		code := packets.ErrNotAuthorized
		code.Reason = refusal
		cl.Properties.Will = mqtt.Will{}
		h.broker.server.SendConnack(cl, code, false, nil)
		return code
	}
	// A client that promises no sign of life would be kept when it is dead.
	if cl.State.Keepalive == 0 || cl.State.Keepalive > maxKeepAlive {
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepAlive, true
	}
	return nil
}

// admit says why a client may not come in, "" when it may. It then owns its
// client id.
func (h *hook) admit(cl *mqtt.Client, p packets.Packet) string {
	limit := cl.Properties.Props.MaximumPacketSize
	switch {
	case !h.rules.mayConnect(nameOf(cl), p.Connect.ClientIdentifier):
		return "client id not allowed for this certificate"
	case p.Connect.WillFlag:
		return "wills are not allowed"
	case limit > 0 && limit < h.broker.o.MaxPacket:
		// The library would drop what is larger, and tell nobody.
		return fmt.Sprintf("maximum packet size %d is below the broker's %d", limit, h.broker.o.MaxPacket)
	}
	if err := h.broker.own(cl.ID, peerOf(cl)); err != nil {
		return err.Error()
	}
	return ""
}

// OnConnectAuthenticate: the TLS handshake has proven the name, OnConnect has
// decided.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, p packets.Packet) bool {
	return h.rules.mayConnect(nameOf(cl), p.Connect.ClientIdentifier)
}

// OnSessionEstablish switches off the library's count of what a client has not
// acknowledged: it keeps packet ids of both directions in one table, loses
// count when they collide, and then holds messages back for ever. The peer
// counts instead, and MaxPending bounds a slow client.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	cl.State.Inflight.ResetSendQuota(0)
	if p := peerOf(cl); p != nil {
		p.receives(int(cl.Properties.Props.ReceiveMaximum))
	}
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
	if write {
		return true
	}
	// This is asked before each delivery, too. The library drops what exceeds
	// its table of unacknowledged messages without telling anybody.
	if cl.State.Inflight.Len() >= maxUnacknowledged || !peerOf(cl).room(patience) {
		h.drop(cl)
	}
	return true
}

// OnQosPublish and OnPacketSent count what is in the library's queue of one
// client, which it fills without waiting.
func (h *hook) OnQosPublish(cl *mqtt.Client, pk packets.Packet, _ int64, _ int) {
	if p := peerOf(cl); p != nil && pk.FixedHeader.Type == packets.Publish {
		p.queue(1, len(pk.Payload))
	}
}

// OnPacketSent is called when the message has reached the peer's buffer.
func (h *hook) OnPacketSent(cl *mqtt.Client, pk packets.Packet, _ []byte) {
	if p := peerOf(cl); p != nil && pk.FixedHeader.Type == packets.Publish && pk.FixedHeader.Qos > 0 {
		p.queue(-1, -len(pk.Payload))
	}
}

// OnSelectSubscribers gives a topic's messages of one key to one and the same of
// those who share its subscription, as long as they are the same: the library's
// choice is random, and would let two replicas hear one consumer, or of one
// resource, out of order.
func (h *hook) OnSelectSubscribers(subs *mqtt.Subscribers, pk packets.Packet) *mqtt.Subscribers {
	subs.SharedSelected = make(map[string]packets.Subscription, len(subs.Shared))
	about := pk.TopicName
	for _, u := range pk.Properties.User {
		if u.Key == keyProperty {
			about += "\x00" + u.Val
		}
	}
	for _, group := range subs.Shared {
		chosen, best := "", uint64(0)
		for client := range group {
			if weight := maphash.String(h.seed, client+"\x00"+about); chosen == "" || weight > best {
				chosen, best = client, weight
			}
		}
		sub := group[chosen]
		if have, ok := subs.SharedSelected[chosen]; ok {
			sub = have.Merge(sub)
		}
		subs.SharedSelected[chosen] = sub
	}
	return subs
}

// OnPublish refuses messages that ask to be kept. Of an event for adapters it
// tells when nobody hears it, as MQTT has it and the library does not.
func (h *hook) OnPublish(_ *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	switch {
	case !p.FixedHeader.Retain && p.FixedHeader.Qos > 0 && strings.HasPrefix(p.TopicName, EventTopic("")) &&
		h.unheard(p.TopicName):
		return p, packets.CodeNoMatchingSubscribers
	case !p.FixedHeader.Retain:
		return p, nil
	case p.FixedHeader.Qos == 0:
		return p, packets.ErrRejectPacket
	default:
		return p, packets.ErrRetainNotSupported
	}
}

func (h *hook) unheard(topic string) bool {
	subs := h.broker.server.Topics.Subscribers(topic)
	return len(subs.Subscriptions)+len(subs.Shared)+len(subs.InlineSubscriptions) == 0
}

// OnPublishDropped: a message that one client does not get must not pass
// unnoticed. It is disconnected, and resync makes it good.
func (h *hook) OnPublishDropped(cl *mqtt.Client, _ packets.Packet) { h.drop(cl) }

func (h *hook) drop(cl *mqtt.Client) {
	if p := peerOf(cl); p != nil && !cl.Closed() {
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
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
	}
	if p.FixedHeader.Type == packets.Puback && p.ReasonCode == packets.CodeNoMatchingSubscribers.Code {
		// without it the library leaves the code out
		p.Properties.ReasonString = packets.CodeNoMatchingSubscribers.Reason
	}
	return p
}
