package bus

import "encoding/binary"

// flow enforces a client's Receive Maximum (MQTT 5, 3.3.4): the number of messages
// of QoS 1 that the client may have unacknowledged. It holds further messages back,
// in order; all other packets, such as answers and pings, are sent at once. It is
// not safe for concurrent use: the peer's lock guards it.
type flow struct {
	maximum  int // 0: the protocol's 65,535, above what the broker allows (maxUnacknowledged)
	inflight int
	held     [][]byte
	bytes    int // of held
}

// appendSendable appends to out those packets of b that may be sent now, and holds the
// others back. b consists of whole packets.
func (f *flow) appendSendable(out, b []byte) []byte {
	if f.maximum == 0 || f.maximum > maxUnacknowledged {
		return append(out, b...)
	}
	for len(b) > 0 {
		n := packetLength(b)
		packet := b[:n]
		b = b[n:]
		switch {
		case !needsAcknowledgement(packet):
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

// acknowledge counts one acknowledgement, and appends to out the held packets that may be
// sent now.
func (f *flow) acknowledge(out []byte) []byte {
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

// needsAcknowledgement reports whether a packet is a PUBLISH of QoS 1 or 2.
func needsAcknowledgement(packet []byte) bool { return packet[0]>>4 == 3 && packet[0]&0b0110 != 0 }

// packetLength returns the length of the first packet of b: one byte, then the
// remaining length as a varint of at most four bytes, then that many bytes.
func packetLength(b []byte) int {
	remaining, size := binary.Uvarint(b[1:])
	if size <= 0 || uint64(len(b)-1-size) < remaining {
		return len(b) // not reached: the library writes whole packets
	}
	return 1 + size + int(remaining)
}
