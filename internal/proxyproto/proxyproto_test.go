package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
)

// version2 makes a header of version 2.
func version2(command, family byte, rest ...byte) string {
	header := append(bytes.Clone(binarySignature), command, family)
	return string(append(binary.BigEndian.AppendUint16(header, uint16(len(rest))), rest...))
}

// addresses4 are the addresses 192.0.2.7:5566 and 192.0.2.1:443.
var addresses4 = []byte{192, 0, 2, 7, 192, 0, 2, 1, 5566 >> 8, 5566 & 0xff, 1, 187}

// addresses6 are the addresses [2001:db8::7]:5566 and [2001:db8::1]:443.
func addresses6() []byte {
	source, destination := netip.MustParseAddr("2001:db8::7").As16(), netip.MustParseAddr("2001:db8::1").As16()
	return append(append(source[:], destination[:]...), addresses4[8:]...)
}

func TestReadReturnsTheClientOfAHeader(t *testing.T) {
	for name, c := range map[string]struct{ header, want string }{
		"version 1, IPv4":           {"PROXY TCP4 192.0.2.7 192.0.2.1 5566 443\r\n", "192.0.2.7:5566"},
		"version 1, IPv6":           {"PROXY TCP6 2001:db8::7 2001:db8::1 5566 443\r\n", "[2001:db8::7]:5566"},
		"version 1, IPv4 in IPv6":   {"PROXY TCP6 ::ffff:192.0.2.7 ::1 5566 443\r\n", "192.0.2.7:5566"},
		"version 1, no address":     {"PROXY UNKNOWN\r\n", ""},
		"version 1, unknown family": {"PROXY UNKNOWN ff::1 ff::2 1 2\r\n", ""},
		"version 2, IPv4":           {version2(commandProxy, familyTCPOverIP4, addresses4...), "192.0.2.7:5566"},
		"version 2, IPv6":           {version2(commandProxy, familyTCPOverIP6, addresses6()...), "[2001:db8::7]:5566"},
		"version 2, with extensions": {version2(commandProxy, familyTCPOverIP4, append(addresses4[:12:12], 4, 0, 1, 0)...),
			"192.0.2.7:5566"},
		"version 2, a health check": {version2(commandLocal, familyUnknown), ""},
		"version 2, Unix":           {version2(commandProxy, familyUnixStream, make([]byte, 216)...), ""},
	} {
		// Read must leave the byte after the header, and take bytes one by one.
		rest := strings.NewReader(c.header + "\x16")
		got, err := Read(iotest.OneByteReader(rest))
		if text := got.String(); err != nil || c.want != "" && text != c.want || c.want == "" && got.IsValid() {
			t.Errorf("%s: %s, %v, want %s", name, text, err, c.want)
		}
		if rest.Len() != 1 {
			t.Errorf("%s: %d bytes left, want 1", name, rest.Len())
		}
	}
}

func TestReadRefusesAHeaderThatIsNotWellFormed(t *testing.T) {
	long := version2(commandProxy, familyTCPOverIP4, make([]byte, maxBinary+1)...)
	for name, c := range map[string]struct {
		sent string
		want error
	}{
		"nothing":                {"", io.EOF},
		"a TLS record":           {"\x16\x03\x01\x00\x10\x01\x00\x00\x0c\x03\x03\x00", ErrMalformed},
		"cut off":                {"PROXY TCP4 192.0.2.7 192.0.2.1 5566 443", io.ErrUnexpectedEOF},
		"other family":           {"PROXY UDP4 192.0.2.7 192.0.2.1 5566 443\r\n", ErrMalformed},
		"IPv6 as IPv4":           {"PROXY TCP4 2001:db8::7 2001:db8::1 5566 443\r\n", ErrMalformed},
		"IPv4 as IPv6":           {"PROXY TCP6 192.0.2.7 192.0.2.1 5566 443\r\n", ErrMalformed},
		"a zone":                 {"PROXY TCP6 fe80::1%eth0 fe80::2 5566 443\r\n", ErrMalformed},
		"a port that is too big": {"PROXY TCP4 192.0.2.7 192.0.2.1 65536 443\r\n", ErrMalformed},
		"a port with a zero":     {"PROXY TCP4 192.0.2.7 192.0.2.1 0443 443\r\n", ErrMalformed},
		"a sixth field":          {"PROXY TCP4 192.0.2.7 192.0.2.1 5566 443 x\r\n", ErrMalformed},
		"two spaces":             {"PROXY TCP4  192.0.2.7 192.0.2.1 5566 443\r\n", ErrMalformed},
		"a wrong destination":    {"PROXY TCP4 192.0.2.7 a.example 5566 443\r\n", ErrMalformed},
		"no end":                 {"PROXY UNKNOWN " + strings.Repeat("x", 200), ErrMalformed},
		"version 3":              {version2(0x31, familyTCPOverIP4, addresses4...), ErrMalformed},
		"another command":        {version2(0x22, familyTCPOverIP4, addresses4...), ErrMalformed},
		"UDP":                    {version2(commandProxy, 0x12, addresses4...), ErrMalformed},
		"short addresses":        {version2(commandProxy, familyTCPOverIP4, addresses4[:11]...), ErrMalformed},
		"IPv6 of the size of 4":  {version2(commandProxy, familyTCPOverIP6, addresses4...), ErrMalformed},
		"too long":               {long, ErrMalformed},
	} {
		if got, err := Read(strings.NewReader(c.sent)); !errors.Is(err, c.want) || got.IsValid() {
			t.Errorf("%s: %s, error %v, want %v", name, got, err, c.want)
		}
	}
}

// FuzzRead: Read returns for any bytes, takes no more than the longest header, and a client that it
// returns is the one that the other version's header would name.
func FuzzRead(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.7 192.0.2.1 5566 443\r\nx"))
	f.Add([]byte("PROXY UNKNOWN\r\n"))
	f.Add([]byte(version2(commandProxy, familyTCPOverIP4, addresses4...)))
	f.Add([]byte(version2(commandProxy, familyTCPOverIP6, addresses6()...)))
	f.Add([]byte(version2(commandLocal, familyUnknown)))
	f.Fuzz(func(t *testing.T, sent []byte) {
		rest := bytes.NewReader(sent)
		client, err := Read(rest)
		if taken := len(sent) - rest.Len(); taken > prefixLength+4+maxBinary {
			t.Fatalf("%d bytes taken", taken)
		}
		if err != nil || !client.IsValid() {
			return
		}
		family := "TCP4"
		if client.Addr().Is6() {
			family = "TCP6"
		}
		line := fmt.Sprintf("PROXY %s %s %[2]s %d 1\r\n", family, client.Addr(), client.Port())
		again, err := Read(strings.NewReader(line))
		if err != nil || again != client {
			t.Fatalf("%s again: %s, %v", client, again, err)
		}
	})
}
