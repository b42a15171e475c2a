package router

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// clientHelloOf returns the first flight of Go's own TLS client.
func clientHelloOf(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	config.InsecureSkipVerify = true // nobody answers
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, config).HandshakeContext(context.Background()) // ends when the other end closes
	}()
	_ = server.SetDeadline(time.Now().Add(30 * time.Second))
	raw, _, err := readHello(server)
	if err != nil && !errors.Is(err, errNoName) {
		t.Fatal(err)
	}
	return raw
}

// fragmented spreads the one record of raw over records of at most n bytes.
func fragmented(raw []byte, n int) []byte {
	var out []byte
	for body := raw[recordHeader:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		body = body[len(part):]
		out = append(out, raw[0], raw[1], raw[2], byte(len(part)>>8), byte(len(part)))
		out = append(out, part...)
	}
	return out
}

func TestTheServerNameIsReadFromWhatClientsSend(t *testing.T) {
	for name, config := range map[string]*tls.Config{
		"TLS 1.3": {ServerName: "HC-1.Hosted.Atoll.internal", MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2", "http/1.1"}},
		"TLS 1.2":           {ServerName: "hc-1.hosted.atoll.internal", MaxVersion: tls.VersionTLS12},
		"without quantum":   {ServerName: "hc-1.hosted.atoll.internal", CurvePreferences: []tls.CurveID{tls.X25519}},
		"with a trailing .": {ServerName: "hc-1.hosted.atoll.internal."},
		"many protocols": {ServerName: "hc-1.hosted.atoll.internal", NextProtos: strings.Fields(
			strings.Repeat("protocol ", 900))},
		"with session cache": {ServerName: "hc-1.hosted.atoll.internal",
			ClientSessionCache: tls.NewLRUClientSessionCache(1)},
	} {
		whole := clientHelloOf(t, config)
		for _, sent := range [][]byte{whole, fragmented(whole, 1000), fragmented(whole, 7)} {
			if len(sent) > maxHello {
				continue
			}
			// The byte after the hello must stay unread, and bytes may come one by one.
			rest := bytes.NewReader(append(bytes.Clone(sent), 'x'))
			raw, got, err := readHello(iotest.OneByteReader(rest))
			if err != nil || got != "hc-1.hosted.atoll.internal" || !bytes.Equal(raw, sent) || rest.Len() != 1 {
				t.Errorf("%s in %d bytes: name %q, error %v, %d bytes kept, %d left", name, len(sent), got, err,
					len(raw), rest.Len())
			}
		}
	}
}

// extensionsOf makes a ClientHello that has these extensions only.
func helloWith(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...) // version, random
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)       // no session, one suite, no compression
	all := bytes.Join(extensions, nil)
	if extensions != nil {
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	}
	message := append([]byte{clientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append(binary.BigEndian.AppendUint16([]byte{recordHandshake, 3, 1}, uint16(len(message))), message...)
}

func sni(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, nameTypeHost), uint16(len(n))), n...)
	}
	list = append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)
	return append(binary.BigEndian.AppendUint16([]byte{0, extensionSNI}, uint16(len(list))), list...)
}

func TestAHelloThatIsNotWellFormedIsRefused(t *testing.T) {
	long := strings.Repeat("a", 254)
	truncated := helloWith(sni("a.example"))
	truncated[len(truncated)-1-len("a.example")]++ // the name is longer than its list
	for name, c := range map[string]struct {
		sent []byte
		want error
	}{
		"plain HTTP":           {[]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), errGarbage},
		"another record":       {[]byte{23, 3, 3, 0, 1, 0}, errGarbage},
		"another version":      {[]byte{22, 2, 0, 0, 1, 1}, errGarbage},
		"empty record":         {[]byte{22, 3, 1, 0, 0}, errGarbage},
		"too large a record":   {[]byte{22, 3, 1, 0x40, 0}, errGarbage},
		"another message":      {[]byte{22, 3, 1, 0, 1, 2}, errGarbage},
		"too many records":     {bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 3000), errGarbage},
		"cut off":              {truncated[:20], io.ErrUnexpectedEOF},
		"nothing":              {nil, io.EOF},
		"no extensions":        {helloWith(), errNoName},
		"no server name":       {helloWith([]byte{0, 43, 0, 3, 2, 3, 4}), errNoName},
		"name longer than it":  {truncated, errGarbage},
		"empty name":           {helloWith(sni("")), errGarbage},
		"empty list":           {helloWith(sni()), errGarbage},
		"two names":            {helloWith(sni("a.example", "b.example")), errGarbage},
		"the extension twice":  {helloWith(sni("a.example"), sni("b.example")), errGarbage},
		"a name with a slash":  {helloWith(sni("../a")), errGarbage},
		"a name with a zero":   {helloWith(sni("a\x00b")), errGarbage},
		"a name of 254 bytes":  {helloWith(sni(long)), errGarbage},
		"a name that ends in.": {helloWith(sni("a.example.")), errGarbage},
	} {
		if _, got, err := readHello(bytes.NewReader(c.sent)); !errors.Is(err, c.want) || got != "" {
			t.Errorf("%s: name %q, error %v, want %v", name, got, err, c.want)
		}
	}
	if _, got, err := readHello(bytes.NewReader(helloWith(sni("a.example")))); err != nil || got != "a.example" {
		t.Errorf("the smallest good one: %q, %v", got, err)
	}
}

// FuzzReadHello holds the parser against crypto/tls: what that reads as a
// hello for a name, in the bytes that the parser took, is the same name here.
func FuzzReadHello(f *testing.F) {
	real := clientHelloOf(f, &tls.Config{ServerName: "hc-0123456789ab.hosted.atoll.internal"})
	f.Add(real)
	f.Add(fragmented(real, 100))
	f.Add(clientHelloOf(f, &tls.Config{MaxVersion: tls.VersionTLS12}))
	f.Add(helloWith(sni("a.example")))
	f.Add(helloWith(sni("a.example", "b.example")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, name, err := readHello(bytes.NewReader(data))
		if err == nil && (!bytes.HasPrefix(data, raw) || len(raw) > maxHello || name == "" || !dnsName(name)) {
			t.Fatalf("took %d of %d bytes, name %q", len(raw), len(data), name)
		}
		theirs, ok := nameByCryptoTLS(data)
		switch {
		case err == nil && ok && strings.ToLower(theirs) != name:
			t.Fatalf("name %q, crypto/tls reads %q", name, theirs)
		case err != nil && ok && theirs != "" && dnsName(strings.ToLower(theirs)) && len(data) <= maxHello:
			t.Fatalf("%v, crypto/tls reads %q", err, theirs)
		}
	})
}

func nameByCryptoTLS(data []byte) (name string, ok bool) {
	_ = tls.Server(sentence{bytes.NewReader(data)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (
		*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, errors.New("seen")
	}}).Handshake()
	return name, ok
}

// sentence is a peer that says its bytes and does not listen.
type sentence struct{ io.Reader }

func (sentence) Write(b []byte) (int, error)      { return len(b), nil }
func (sentence) Close() error                     { return nil }
func (sentence) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (sentence) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (sentence) SetDeadline(time.Time) error      { return nil }
func (sentence) SetReadDeadline(time.Time) error  { return nil }
func (sentence) SetWriteDeadline(time.Time) error { return nil }
