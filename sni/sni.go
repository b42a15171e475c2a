// Package sni reads the server name from the first message of a TLS
// connection, the ClientHello, without terminating TLS.
//
// A router reads the hello with Read, chooses a backend by the server name, and
// sends Hello.Raw and then the rest of the connection to it. The parser accepts
// no hello that another parser could read differently: a hello with a malformed
// part is an error.
//
// The package is a tool: it imports no package of ours, and any service may
// import it.
package sni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/cryptobyte"
)

// MaxHello bounds the bytes that a client may send before it has named a
// server, record headers included. A hello with post-quantum keys takes about
// 2 KiB.
const MaxHello = 16 << 10

// Constants of TLS: RFC 8446, sections 5.1 and 4.1.2; RFC 6066, section 3.
const (
	recordHeaderLength  = 5
	recordTypeHandshake = 22
	majorVersion        = 3 // of every version from SSL 3.0 to TLS 1.3
	messageClientHello  = 1
	maxSessionID        = 32
	randomLength        = 32
	extensionServerName = 0
	nameTypeHost        = 0
	maxDNSName          = 253
)

var (
	// ErrMalformed is the error of bytes that are no well-formed ClientHello, or
	// of a hello that is longer than MaxHello.
	ErrMalformed = errors.New("malformed TLS ClientHello")
	// ErrNoName is the error of a well-formed ClientHello without a server name.
	ErrNoName = errors.New("TLS ClientHello without a server name")
)

// Hello is a ClientHello that has been read.
type Hello struct {
	Raw        []byte // the bytes as they came, record headers included
	ServerName string // a DNS name in lower case, without a trailing dot
}

// Read reads one ClientHello from r. It reads to the end of the record in which
// the hello ends, and no byte further. The hello may be spread over any number
// of records, as long as these have at most MaxHello bytes.
//
// The error wraps ErrMalformed, ErrNoName, or the error of r; a hello that is
// cut off gives io.ErrUnexpectedEOF, and an r without any byte io.EOF.
func Read(r io.Reader) (Hello, error) {
	raw := make([]byte, 0, 2048)
	var message []byte // the handshake message, without record headers
	for {
		start := len(raw)
		if start+recordHeaderLength > MaxHello {
			return Hello{}, fmt.Errorf("%w: longer than %d bytes", ErrMalformed, MaxHello)
		}
		var err error
		if raw, err = appendFrom(r, raw, recordHeaderLength); err != nil {
			return Hello{}, err
		}
		header := raw[start:]
		size := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != recordTypeHandshake || header[1] != majorVersion || size == 0 || len(raw)+size > MaxHello {
			return Hello{}, fmt.Errorf("%w: record of type %d, version %d, %d bytes", ErrMalformed, header[0], header[1], size)
		}
		if raw, err = appendFrom(r, raw, size); err != nil {
			return Hello{}, err
		}
		message = append(message, raw[start+recordHeaderLength:]...)
		if message[0] != messageClientHello {
			return Hello{}, fmt.Errorf("%w: handshake message of type %d", ErrMalformed, message[0])
		}
		rest := cryptobyte.String(message[1:])
		var body cryptobyte.String
		if !rest.ReadUint24LengthPrefixed(&body) {
			continue // the message goes on in the next record
		}
		name, err := serverName(body)
		if err != nil {
			return Hello{}, err
		}
		return Hello{Raw: raw, ServerName: name}, nil
	}
}

// appendFrom appends exactly n bytes of r to b.
func appendFrom(r io.Reader, b []byte, n int) ([]byte, error) {
	end := len(b)
	b = append(b, make([]byte, n)...)
	_, err := io.ReadFull(r, b[end:])
	return b, err
}

// serverName returns the host name in the body of a ClientHello.
func serverName(hello cryptobyte.String) (string, error) {
	var session, suites, compression, extensions cryptobyte.String
	if !hello.Skip(2+randomLength) ||
		!hello.ReadUint8LengthPrefixed(&session) || len(session) > maxSessionID ||
		!hello.ReadUint16LengthPrefixed(&suites) || len(suites)%2 != 0 ||
		!hello.ReadUint8LengthPrefixed(&compression) || compression.Empty() {
		return "", ErrMalformed
	}
	if hello.Empty() {
		return "", ErrNoName // TLS 1.0 clients may send no extensions at all
	}
	if !hello.ReadUint16LengthPrefixed(&extensions) || !hello.Empty() {
		return "", ErrMalformed
	}
	name, seen := "", map[uint16]bool{}
	for !extensions.Empty() {
		var id uint16
		var content cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&content) {
			return "", ErrMalformed
		}
		if seen[id] {
			return "", fmt.Errorf("%w: extension %d twice", ErrMalformed, id)
		}
		seen[id] = true
		if id == extensionServerName {
			var err error
			if name, err = hostName(content); err != nil {
				return "", err
			}
		}
	}
	if name == "" {
		return "", ErrNoName
	}
	return name, nil
}

// hostName returns the host name in the extension server_name, "" when the
// extension has names of other types only.
func hostName(extension cryptobyte.String) (string, error) {
	var names cryptobyte.String
	if !extension.ReadUint16LengthPrefixed(&names) || !extension.Empty() || names.Empty() {
		return "", ErrMalformed
	}
	host := ""
	for !names.Empty() {
		var kind uint8
		var name cryptobyte.String
		if !names.ReadUint8(&kind) || !names.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return "", ErrMalformed
		}
		if kind != nameTypeHost {
			continue
		}
		if host != "" {
			return "", fmt.Errorf("%w: two host names", ErrMalformed)
		}
		host = strings.ToLower(string(name))
	}
	if host != "" && !isDNSName(host) {
		return "", fmt.Errorf("%w: the server name is no DNS name", ErrMalformed)
	}
	return host, nil
}

// isDNSName reports whether s, in lower case, may be a server name.
func isDNSName(s string) bool {
	if len(s) > maxDNSName || strings.HasSuffix(s, ".") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) < 0
}
