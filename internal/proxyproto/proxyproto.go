// Package proxyproto reads the header of the PROXY protocol, versions 1 and 2, with which a load
// balancer names the client of a connection that it forwards.
//
// A server reads the header only from the addresses of its own load balancers: anybody else could
// name any address. The package is a tool: it imports no package of ours, and any service may
// import it.
package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// ErrMalformed is the error of bytes that are no well-formed header.
var ErrMalformed = errors.New("malformed PROXY protocol header")

const (
	maxText   = 107     // bytes of a header of version 1, its end included
	maxBinary = 2 << 10 // bytes of a header of version 2 after its length: addresses and TLVs
)

// prefixLength is how many bytes distinguish the two versions. No header is shorter.
const prefixLength = 12

var (
	textPrefix      = []byte("PROXY ")
	binarySignature = []byte("\r\n\r\n\x00\r\nQUIT\n") // version 2
)

// Commands and address families of version 2.
const (
	commandLocal     = 0x20 // the proxy's own connection, for example a health check
	commandProxy     = 0x21
	familyUnknown    = 0x00
	familyTCPOverIP4 = 0x11
	familyTCPOverIP6 = 0x21
	familyUnixStream = 0x31
)

// Read reads one header from r, and no byte after it. It returns the address of the client, or the
// zero AddrPort when the header names none: a connection of the proxy itself, or of a family other
// than TCP over IP.
//
// The error wraps ErrMalformed or the error of r.
func Read(r io.Reader) (netip.AddrPort, error) {
	prefix := make([]byte, prefixLength)
	if _, err := io.ReadFull(r, prefix); err != nil {
		return netip.AddrPort{}, err
	}
	switch {
	case bytes.Equal(prefix, binarySignature):
		return readBinary(r)
	case bytes.HasPrefix(prefix, textPrefix):
		return readText(r, prefix)
	}
	return netip.AddrPort{}, fmt.Errorf("%w: neither version 1 nor 2", ErrMalformed)
}

// readText reads the rest of a header of version 1, byte by byte: it has no length.
func readText(r io.Reader, line []byte) (netip.AddrPort, error) {
	for one := make([]byte, 1); !bytes.HasSuffix(line, []byte("\r\n")); {
		if len(line) == maxText {
			return netip.AddrPort{}, fmt.Errorf("%w: longer than %d bytes", ErrMalformed, maxText)
		}
		if _, err := io.ReadFull(r, one); errors.Is(err, io.EOF) {
			return netip.AddrPort{}, io.ErrUnexpectedEOF
		} else if err != nil {
			return netip.AddrPort{}, err
		}
		line = append(line, one[0])
	}
	text := strings.TrimSuffix(string(line[len(textPrefix):]), "\r\n")
	if text == "UNKNOWN" || strings.HasPrefix(text, "UNKNOWN ") {
		return netip.AddrPort{}, nil
	}
	fields := strings.Split(text, " ") // family, source, destination, source port, destination port
	if len(fields) != 5 || fields[0] != "TCP4" && fields[0] != "TCP6" {
		return netip.AddrPort{}, fmt.Errorf("%w: not the five fields of a TCP connection", ErrMalformed)
	}
	source, err := parseAddress(fields[0], fields[1], fields[3])
	if err != nil {
		return netip.AddrPort{}, err
	}
	if _, err := parseAddress(fields[0], fields[2], fields[4]); err != nil {
		return netip.AddrPort{}, err
	}
	return source, nil
}

// parseAddress returns an address of a header of version 1.
func parseAddress(family, host, port string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || addr.Is4() != (family == "TCP4") {
		return netip.AddrPort{}, fmt.Errorf("%w: a host is no address of %s", ErrMalformed, family)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strconv.FormatUint(number, 10) != port {
		return netip.AddrPort{}, fmt.Errorf("%w: a port is no number up to 65535", ErrMalformed)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

// readBinary reads the rest of a header of version 2 after its signature.
func readBinary(r io.Reader) (netip.AddrPort, error) {
	var fixed [4]byte // command, family, length of the rest
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return netip.AddrPort{}, err
	}
	command, family, length := fixed[0], fixed[1], int(binary.BigEndian.Uint16(fixed[2:]))
	if command != commandLocal && command != commandProxy {
		return netip.AddrPort{}, fmt.Errorf("%w: version and command %#x", ErrMalformed, command)
	}
	if length > maxBinary {
		return netip.AddrPort{}, fmt.Errorf("%w: %d bytes of addresses, the limit is %d", ErrMalformed, length, maxBinary)
	}
	rest := make([]byte, length)
	if _, err := io.ReadFull(r, rest); err != nil {
		return netip.AddrPort{}, err
	}
	if command == commandLocal {
		return netip.AddrPort{}, nil
	}
	size := 0 // of an address
	switch family {
	case familyUnknown, familyUnixStream:
		return netip.AddrPort{}, nil
	case familyTCPOverIP4:
		size = 4
	case familyTCPOverIP6:
		size = 16
	default:
		return netip.AddrPort{}, fmt.Errorf("%w: address family %#x", ErrMalformed, family)
	}
	if length < 2*size+4 { // two addresses, two ports
		return netip.AddrPort{}, fmt.Errorf("%w: %d bytes are too few for two addresses", ErrMalformed, length)
	}
	addr, _ := netip.AddrFromSlice(rest[:size])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(rest[2*size:])), nil
}
