package bus

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// dial connects, completes CONNECT and sends SUBSCRIBE.
func dial(ctx context.Context, client *Client) (*connection, error) {
	o := client.o
	ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	var keys fingerprint
	if o.Keys != nil {
		var err error
		if o.TLS, keys, err = loadKeys(o.Keys); err != nil {
			return nil, err
		}
	}
	var d interface {
		DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	} = &net.Dialer{}
	if o.TLS != nil {
		d = &tls.Dialer{Config: o.TLS}
	}
	nc, err := d.DialContext(ctx, "tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	c := &connection{
		client: client, conn: nc, read: bufio.NewReaderSize(nc, 64<<10),
		keys: keys, out: make(chan *packets.ControlPacket, 1024), closed: make(chan struct{}), inflight: newInflight(
			o.AckTimeout),
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	err = c.handshake()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// handshake sends CONNECT, reads CONNACK with the broker's limits, and sends SUBSCRIBE.
func (c *connection) handshake() error {
	o := c.client.o
	receive, expiry := uint16(65535), uint32(0)
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: o.ClientID, CleanStart: true, KeepAlive: uint16(
			max(o.KeepAlive/time.Second, 1)),
		Username: o.Username, UsernameFlag: o.Username != "", Password: []byte(
			o.Password), PasswordFlag: o.Password != "",
		Properties: &packets.Properties{ReceiveMaximum: &receive, SessionExpiryInterval: &expiry},
	}
	if _, err := connect.WriteTo(c.conn); err != nil {
		return fmt.Errorf("connecting to the broker: %w", err)
	}
	reply, err := packets.ReadPacket(c.read)
	if err != nil {
		return fmt.Errorf("connecting to the broker: %w", err)
	}
	ack, ok := reply.Content.(*packets.Connack)
	if !ok || ack.ReasonCode != 0 {
		return fmt.Errorf("the broker refuses the connection: %s", refusal(reply))
	}
	window := o.Window
	if p := ack.Properties; p != nil {
		if p.ReceiveMaximum != nil {
			window = min(window, int(*p.ReceiveMaximum))
		}
		if p.MaximumPacketSize != nil {
			c.limit = *p.MaximumPacketSize
		}
	}
	c.window = make(chan struct{}, max(window, 1))
	if len(o.Subscriptions) == 0 {
		return nil
	}
	subscribe := &packets.Subscribe{PacketID: 1, Properties: &packets.Properties{}}
	c.inflight.nextID = 1
	for _, filter := range o.Subscriptions {
		subscribe.Subscriptions = append(subscribe.Subscriptions, packets.SubOptions{Topic: filter, QoS: 1})
	}
	if _, err := subscribe.WriteTo(c.conn); err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	return nil // readLoop reads SUBACK: messages may arrive before it
}

// refusal returns the reason for which the broker refused CONNECT.
func refusal(p *packets.ControlPacket) string {
	switch a := p.Content.(type) {
	case *packets.Connack:
		if a.Properties != nil && a.Properties.ReasonString != "" {
			return a.Properties.ReasonString
		}
		return fmt.Sprintf("reason 0x%02x", a.ReasonCode)
	case *packets.Disconnect:
		return fmt.Sprintf("disconnect, reason 0x%02x", a.ReasonCode)
	}
	return "packet of type " + p.PacketType()
}
