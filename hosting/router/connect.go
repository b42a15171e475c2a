package router

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"

	"atoll.dev/sni"
)

// wish is the plane that a client requests in its first bytes.
type wish struct {
	serverName string
	hello      []byte // the ClientHello as it came; nil: the client sent a CONNECT
}

// isConnect reports whether the client sends its ClientHello after the answer to a CONNECT.
func (w wish) isConnect() bool { return w.hello == nil }

// answerTo returns the bytes that the client gets for an outcome. Only a name without a route is answered as such: a
// machine of a customer stops when the router does not know its cluster for long (node/join), and a limit is no reason
// to stop.
func (w wish) answerTo(why outcome) []byte {
	switch {
	case w.isConnect() && why == outcomeUnknown:
		return []byte("HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	case w.isConnect():
		return []byte("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	case why == outcomeUnknown:
		return alertUnrecognizedName
	}
	return alertInternalError
}

// connected is the answer to a CONNECT whose plane is reached.
var connected = []byte("HTTP/1.1 200 OK\r\n\r\n")

// maxConnect bounds a CONNECT, in bytes: a name has at most 253.
const maxConnect = 1 << 10

var errConnect = errors.New("malformed CONNECT")

// readWish reads a ClientHello with a server name, or a CONNECT of HTTP/1.1. Pods know their API server by an address,
// so their hello has no name of a plane. The machine of a customer, whose only way to the plane is the router, sends
// the name before: CONNECT gives it the same plane, with the same limits, as a hello with the name would.
func readWish(client net.Conn) (wish, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(client, first); err != nil {
		return wish{}, err
	}
	if first[0] == 'C' { // no record of TLS begins so
		name, err := readConnect(client, first)
		return wish{serverName: name}, err
	}
	hello, err := sni.Read(io.MultiReader(bytes.NewReader(first), client))
	return wish{hello.ServerName, hello.Raw}, err
}

// readConnect reads the rest of a CONNECT, to its end and no byte further, and returns the name. It accepts no body,
// and ignores all headers.
func readConnect(r io.Reader, text []byte) (name string, err error) {
	one := make([]byte, 1)
	for !bytes.HasSuffix(text, []byte("\r\n\r\n")) {
		if len(text) == maxConnect {
			return "", errConnect
		}
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		text = append(text, one[0])
	}
	line, _, _ := strings.Cut(string(text), "\r\n")
	target, ok := strings.CutPrefix(line, "CONNECT ")
	target, version, found := strings.Cut(target, " ")
	host, port, err := net.SplitHostPort(target)
	if !ok || !found || version != "HTTP/1.1" || err != nil || port != "443" {
		return "", errConnect
	}
	return strings.ToLower(host), nil
}
