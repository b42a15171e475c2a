package bus

import "encoding/binary"

// flow keeps a client's Receive Maximum (MQTT 5, 3.3.4): so many messages of
// QoS 1 may be with it that it has not acknowledged. What comes beyond waits
// here, in order; everything else, answers and pings, passes. Its owner has a
// lock.
type flow struct {
	maximum  int // 0: the protocol's, which is more than the broker lets wait (maxUnacknowledged)
	inflight int
	held     [][]byte
	bytes    int // of held
}

// pass appends to out what of b, some whole packets, may be sent now.
func (f *flow) pass(out, b []byte) []byte {
	if f.maximum == 0 || f.maximum > maxUnacknowledged {
		return append(out, b...)
	}
	for len(b) > 0 {
		n := packetLength(b)
		packet := b[:n]
		b = b[n:]
		switch {
		case !counts(packet):
			out = append(out, packet...)
		case f.inflight < f.maximum && len(f.held) == 0:
			f.inflight++
			out = append(out, packet...)
		default:
			f.held = append(f.held, append([]byte(nil), packet...))
			f.bytes += n
		}
	}
	return out
}

// release takes an acknowledgement, and appends to out what there is room for.
func (f *flow) release(out []byte) []byte {
	if f.inflight > 0 {
		f.inflight--
	}
	for f.inflight < f.maximum && len(f.held) > 0 {
		packet := f.held[0]
		f.held[0], f.held = nil, f.held[1:]
		f.bytes -= len(packet)
		f.inflight++
		out = append(out, packet...)
	}
	return out
}

// counts tells whether a packet is a PUBLISH that wants an acknowledgement.
func counts(packet []byte) bool { return packet[0]>>4 == 3 && packet[0]&0b0110 != 0 }

// packetLength is the length of the first packet of b: its first byte, the
// remaining length (a varint, as encoding/binary writes them, of at most four
// bytes), and that.
func packetLength(b []byte) int {
	remaining, size := binary.Uvarint(b[1:])
	if size <= 0 || uint64(len(b)-1-size) < remaining {
		return len(b) // the library wrote part of a packet, which it never does
	}
	return 1 + size + int(remaining)
}
