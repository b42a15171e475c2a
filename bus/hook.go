package bus

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// hook connects the broker to its library: rules, limits and logs.
type hook struct {
	mqtt.HookBase
	broker *Broker
	rules  rules
	seed   maphash.Seed
}

const (
	// maxKeepAlive is in seconds.
	maxKeepAlive = 60
	// maxUnacknowledged bounds the unacknowledged messages of one client. It is a little
	// below the library's limit because a publisher checks first and adds later.
	maxUnacknowledged = 60_000
	// maxQueued bounds the messages in the library's queue of one client. That queue
	// grows only while the processor is busy: messages for a slow client are in its peer.
	maxQueued = 512
	// roomTimeout bounds how long a publisher waits for a subscriber with a full buffer.
	roomTimeout = 250 * time.Millisecond
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

// nameOf returns the common name of a client's certificate.
func nameOf(cl *mqtt.Client) string {
	if p := peerOf(cl); p != nil {
		return p.name
	}
	return ""
}

// peerOf returns the connection of a client.
func peerOf(cl *mqtt.Client) *peer {
	p, _ := cl.Net.Conn.(*peer)
	return p
}

// OnPacketRead changes CONNECT so that every session is a clean one that ends with
// its connection and has no topic aliases, regardless of what the client asks for.
func (h *hook) OnPacketRead(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.FixedHeader.Type == packets.Connect {
		p.Connect.Clean = true
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
		p.Properties.TopicAliasMaximum = 0
	}
	// The library drops publishes to $SYS without an answer. It does answer a publish to
	// the topic "refused", which no rule allows.
	if p.FixedHeader.Type == packets.Publish && strings.HasPrefix(p.TopicName, "$") {
		p.TopicName = "refused"
	}
	if peer := peerOf(cl); p.FixedHeader.Type == packets.Puback && peer != nil {
		peer.acknowledge()
	}
	if p.FixedHeader.Type == packets.Disconnect { // it may change the expiry, too
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, false
	}
	return p, nil
}

// OnConnect refuses clients that ask for features that the broker does not have, or for
// a client id that their certificate does not allow.
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
	// Without a keep-alive the broker would never notice a dead client.
	if cl.State.Keepalive == 0 || cl.State.Keepalive > maxKeepAlive {
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepAlive, true
	}
	return nil
}

// admit checks CONNECT and makes the client the owner of its client id. It returns
// the reason of a refusal, or "".
func (h *hook) admit(cl *mqtt.Client, p packets.Packet) string {
	limit := cl.Properties.Props.MaximumPacketSize
	switch {
	case !h.rules.mayConnect(nameOf(cl), p.Connect.ClientIdentifier):
		return "client id not allowed for this certificate"
	case p.Connect.WillFlag:
		return "wills are not allowed"
	case limit > 0 && limit < h.broker.o.MaxPacket:
		// The library would silently drop larger messages.
		return fmt.Sprintf("maximum packet size %d is below the broker's %d", limit, h.broker.o.MaxPacket)
	}
	if err := h.broker.claimClientID(cl.ID, peerOf(cl)); err != nil {
		return err.Error()
	}
	return ""
}

// OnConnectAuthenticate repeats the check of OnConnect. The TLS handshake has verified
// the name before.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, p packets.Packet) bool {
	return h.rules.mayConnect(nameOf(cl), p.Connect.ClientIdentifier)
}

// OnSessionEstablish switches off the library's count of unacknowledged messages: the
// library keeps packet ids of both directions in one table, counts wrongly when they
// collide, and then holds messages back for ever. The peer counts instead, and
// MaxPending bounds a slow client.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	cl.State.Inflight.ResetSendQuota(0)
	if p := peerOf(cl); p != nil {
		p.setReceiveMaximum(int(cl.Properties.Props.ReceiveMaximum))
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
	// The library calls this before each delivery, too. It silently drops messages beyond
	// its table of unacknowledged messages, so such a client is disconnected first.
	if cl.State.Inflight.Len() >= maxUnacknowledged || !peerOf(cl).waitForRoom(roomTimeout) {
		h.drop(cl)
	}
	return true
}

// OnQosPublish counts a message that enters the library's queue of one client.
// OnPacketSent counts it out. The library fills that queue without waiting.
func (h *hook) OnQosPublish(cl *mqtt.Client, pk packets.Packet, _ int64, _ int) {
	if p := peerOf(cl); p != nil && pk.FixedHeader.Type == packets.Publish {
		p.countQueued(1, len(pk.Payload))
	}
}

// OnPacketSent is called when the message has reached the peer's buffer.
func (h *hook) OnPacketSent(cl *mqtt.Client, pk packets.Packet, _ []byte) {
	if p := peerOf(cl); p != nil && pk.FixedHeader.Type == packets.Publish && pk.FixedHeader.Qos > 0 {
		p.countQueued(-1, -len(pk.Payload))
	}
}

// OnSelectSubscribers selects the client of a shared subscription that gets a message:
// always the same client for one topic and key, as long as the same clients share the
// subscription. The library's choice is random: two replicas would get the events of
// one consumer or resource, and handle them out of order.
func (h *hook) OnSelectSubscribers(subs *mqtt.Subscribers, pk packets.Packet) *mqtt.Subscribers {
	subs.SharedSelected = make(map[string]packets.Subscription, len(subs.Shared))
	routingKey := pk.TopicName
	for _, u := range pk.Properties.User {
		if u.Key == keyProperty {
			routingKey += "\x00" + u.Val
		}
	}
	for _, group := range subs.Shared {
		chosen, best := "", uint64(0)
		for client := range group {
			if weight := maphash.String(h.seed, client+"\x00"+routingKey); chosen == "" || weight > best {
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

// OnPublish refuses messages to be retained. It answers an event for adapters whose
// topic has no subscriber with MQTT's reason 0x10, which the library does not do.
func (h *hook) OnPublish(_ *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	switch {
	case !p.FixedHeader.Retain && p.FixedHeader.Qos > 0 && strings.HasPrefix(p.TopicName, EventTopic("")) &&
		h.hasNoSubscriber(p.TopicName):
		return p, packets.CodeNoMatchingSubscribers
	case !p.FixedHeader.Retain:
		return p, nil
	case p.FixedHeader.Qos == 0:
		return p, packets.ErrRejectPacket
	default:
		return p, packets.ErrRetainNotSupported
	}
}

// hasNoSubscriber reports whether no client has subscribed to a topic.
func (h *hook) hasNoSubscriber(topic string) bool {
	subs := h.broker.server.Topics.Subscribers(topic)
	return len(subs.Subscriptions)+len(subs.Shared)+len(subs.InlineSubscriptions) == 0
}

// OnPublishDropped disconnects a client for which the library dropped a message. The
// client connects again, and its resync repairs the loss.
func (h *hook) OnPublishDropped(cl *mqtt.Client, _ packets.Packet) { h.drop(cl) }

// drop disconnects a client that does not read fast enough.
func (h *hook) drop(cl *mqtt.Client) {
	if p := peerOf(cl); p != nil && !cl.Closed() {
		p.onSlow()
		p.reset()
		cl.Stop(packets.ErrQuotaExceeded)
	}
}

// OnPacketEncode adds the limits to CONNACK that the library leaves out, and the reason
// 0x10 to PUBACK.
func (h *hook) OnPacketEncode(_ *mqtt.Client, p packets.Packet) packets.Packet {
	if p.FixedHeader.Type == packets.Connack && p.ReasonCode < packets.ErrUnspecifiedError.Code {
		p.Properties.MaximumPacketSize = h.broker.o.MaxPacket
		p.Properties.RetainAvailable, p.Properties.RetainAvailableFlag = 0, true
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
	}
	if p.FixedHeader.Type == packets.Puback && p.ReasonCode == packets.CodeNoMatchingSubscribers.Code {
		// without a reason string the library leaves the code out
		p.Properties.ReasonString = packets.CodeNoMatchingSubscribers.Reason
	}
	return p
}
