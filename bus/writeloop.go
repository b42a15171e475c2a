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

// writeLoop writes packets as they come, as many at once as there are, and a
// ping when there are none for long.
func (c *connection) writeLoop(ctx context.Context) error {
	// A broker that reads nothing for so long is as good as gone.
	stuck := c.client.o.KeepAlive * 3 / 2
	w := bufio.NewWriterSize(c.conn, 64<<10)
	ping := time.NewTicker(c.client.o.KeepAlive / 2)
	defer ping.Stop()
	for {
		var p *packets.ControlPacket
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.gone:
			return net.ErrClosed
		case p = <-c.out:
		case <-ping.C:
			p = packets.NewControlPacket(packets.PINGREQ)
		}
		c.conn.SetWriteDeadline(time.Now().Add(stuck))
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

// write adds a packet to the buffer. Packets write their parts one by one, so
// small ones are joined first.
func write(w *bufio.Writer, p *packets.ControlPacket) error {
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
