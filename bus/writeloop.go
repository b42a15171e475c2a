package bus

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// writeLoop writes the queued packets, all that are queued in one write, and a ping
// every half keep-alive. It returns when a write fails, ctx ends or the connection ends.
func (c *connection) writeLoop(ctx context.Context) error {
	// The connection ends when the broker reads nothing for this long.
	timeout := c.client.o.KeepAlive * 3 / 2
	w := bufio.NewWriterSize(c.conn, 64<<10)
	ping := time.NewTicker(c.client.o.KeepAlive / 2)
	defer ping.Stop()
	for {
		var p *packets.ControlPacket
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return net.ErrClosed
		case p = <-c.out:
		case <-ping.C:
			p = packets.NewControlPacket(packets.PINGREQ)
		}
		c.conn.SetWriteDeadline(time.Now().Add(timeout))
		published := uint64(0)
		for p != nil {
			if err := write(w, p); err != nil {
				return fmt.Errorf("writing to the broker: %w", err)
			}
			if p.Type == packets.PUBLISH {
				published++
			}
			select {
			case p = <-c.out:
			default:
				p = nil
			}
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("writing to the broker: %w", err)
		}
		c.written.Add(published)
	}
}

// write adds a packet to w. Packets write their parts one by one, so their parts are
// joined first.
func write(w *bufio.Writer, p *packets.ControlPacket) error {
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
