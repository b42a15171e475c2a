package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxHello bounds what a client may send before it has named a server, record
// headers included. Hellos with post-quantum keys take about 2 KiB.
const maxHello = 16 << 10

// What TLS (RFC 8446, 5.1 and 4.1.2; RFC 6066, 3) calls these.
const (
	recordHeader    = 5
	recordHandshake = 22
	clientHello     = 1
	extensionSNI    = 0
	nameTypeHost    = 0
)

var (
	errGarbage = errors.New("not a TLS ClientHello")
	errNoName  = errors.New("the ClientHello names no server")
)

// readHello reads one ClientHello and returns the bytes as they came, to be
// sent on, and the lower-case server name in it. It reads to the end of the
// record in which the hello ends and no further. The hello may be spread over
// any number of records, as long as they fit into maxHello. Its errors are
// errGarbage, errNoName, and those of r.
func readHello(r io.Reader) (raw []byte, name string, err error) {
	raw = make([]byte, 0, 2048)
	var hello []byte // the handshake message, without record headers
	for {
		at := len(raw)
		if at+recordHeader > maxHello {
			return nil, "", fmt.Errorf("%w: longer than %d bytes", errGarbage, maxHello)
		}
		if raw, err = readMore(r, raw, recordHeader); err != nil {
			return nil, "", err
		}
		header := raw[at:]
		size := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != recordHandshake || header[1] != 3 || size == 0 || len(raw)+size > maxHello {
			return nil, "", fmt.Errorf("%w: record type %d, version %d, %d bytes", errGarbage, header[0], header[1],
				size)
		}
		if raw, err = readMore(r, raw, size); err != nil {
			return nil, "", err
		}
		hello = append(hello, raw[at+recordHeader:]...)
		if hello[0] != clientHello {
			return nil, "", fmt.Errorf("%w: handshake message %d", errGarbage, hello[0])
		}
		body := cursor(hello[1:])
		if message, ok := body.vector(3); ok {
			name, err = serverName(message)
			return raw, name, err
		}
	}
}

// readMore appends exactly n bytes.
func readMore(r io.Reader, b []byte, n int) ([]byte, error) {
	at := len(b)
	b = append(b, make([]byte, n)...)
	_, err := io.ReadFull(r, b[at:])
	return b, err
}

// serverName finds the host name in the body of a ClientHello. What is not
// well-formed to the end is refused, so that router and plane do not read the
// same bytes differently.
func serverName(hello cursor) (string, error) {
	_, ok := hello.take(2 + 32) // version, random
	session, ok2 := hello.vector(1)
	suites, ok3 := hello.vector(2)
	compression, ok4 := hello.vector(1)
	if !ok || !ok2 || !ok3 || !ok4 || len(session) > 32 || len(suites)%2 != 0 || len(compression) == 0 {
		return "", errGarbage
	}
	if len(hello) == 0 {
		return "", errNoName // a client of TLS 1.0 that knows no extensions
	}
	extensions, ok := hello.vector(2)
	if !ok || len(hello) != 0 {
		return "", errGarbage
	}
	name, seen := "", map[uint16]bool{}
	for len(extensions) > 0 {
		kind, ok := extensions.take(2)
		content, ok2 := extensions.vector(2)
		if !ok || !ok2 {
			return "", errGarbage
		}
		id := binary.BigEndian.Uint16(kind)
		if seen[id] {
			return "", fmt.Errorf("%w: extension %d twice", errGarbage, id)
		}
		seen[id] = true
		if id == extensionSNI {
			var err error
			if name, err = hostName(content); err != nil {
				return "", err
			}
		}
	}
	if name == "" {
		return "", errNoName
	}
	return name, nil
}

// hostName reads the extension server_name.
func hostName(extension cursor) (string, error) {
	names, ok := extension.vector(2)
	if !ok || len(extension) != 0 || len(names) == 0 {
		return "", errGarbage
	}
	host := ""
	for len(names) > 0 {
		kind, ok := names.take(1)
		name, ok2 := names.vector(2)
		if !ok || !ok2 || len(name) == 0 {
			return "", errGarbage
		}
		if kind[0] != nameTypeHost {
			continue
		}
		if host != "" {
			return "", fmt.Errorf("%w: two host names", errGarbage)
		}
		host = strings.ToLower(string(name))
	}
	if host != "" && !dnsName(host) {
		return "", errGarbage
	}
	return host, nil
}

// dnsName tells whether s may be a server name in lower case.
func dnsName(s string) bool {
	if len(s) > 253 || strings.HasSuffix(s, ".") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) < 0
}

// cursor is what is left of a message.
type cursor []byte

// take removes n bytes.
func (c *cursor) take(n int) (cursor, bool) {
	if len(*c) < n {
		return nil, false
	}
	taken := (*c)[:n]
	*c = (*c)[n:]
	return taken, true
}

// vector removes a vector whose length stands before it in width bytes. When
// there is less, nothing is removed.
func (c *cursor) vector(width int) (cursor, bool) {
	left := *c
	length, ok := left.take(width)
	if !ok {
		return nil, false
	}
	n := 0
	for _, b := range length {
		n = n<<8 | int(b)
	}
	content, ok := left.take(n)
	if ok {
		*c = left
	}
	return content, ok
}
