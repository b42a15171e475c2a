package sni

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

	"atoll.dev/test/testsite"
)

// clientHello returns the first flight of Go's own TLS client.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	config.InsecureSkipVerify = true // no server answers
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, config).HandshakeContext(context.Background()) // ends when the other end closes
	}()
	_ = server.SetDeadline(time.Now().Add(testsite.HangLimit))
	var read bytes.Buffer
	if _, err := Read(io.TeeReader(server, &read)); err != nil && !errors.Is(err, ErrNoName) {
		t.Fatal(err)
	}
	return read.Bytes()
}

// fragmented spreads the one record of raw over records of at most n bytes.
func fragmented(raw []byte, n int) []byte {
	var out []byte
	for body := raw[recordHeaderLength:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		body = body[len(part):]
		out = append(out, raw[0], raw[1], raw[2], byte(len(part)>>8), byte(len(part)))
		out = append(out, part...)
	}
	return out
}

func TestReadFindsTheServerNameThatClientsSend(t *testing.T) {
	const name = "hc-1.hosted.atoll.internal"
	manyProtocols := strings.Fields(strings.Repeat("protocol ", 900))
	for client, config := range map[string]*tls.Config{
		"TLS 1.3":              {ServerName: "HC-1.Hosted.Atoll.internal", MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}},
		"TLS 1.2":              {ServerName: name, MaxVersion: tls.VersionTLS12},
		"without post-quantum": {ServerName: name, CurvePreferences: []tls.CurveID{tls.X25519}},
		"with a trailing dot":  {ServerName: name + "."},
		"with many protocols":  {ServerName: name, NextProtos: manyProtocols},
		"with a session cache": {ServerName: name, ClientSessionCache: tls.NewLRUClientSessionCache(1)},
	} {
		whole := clientHello(t, config)
		for _, sent := range [][]byte{whole, fragmented(whole, 1000), fragmented(whole, 7)} {
			if len(sent) > MaxHello {
				continue
			}
			// Read must leave the byte after the hello, and take bytes one by one.
			rest := bytes.NewReader(append(bytes.Clone(sent), 'x'))
			hello, err := Read(iotest.OneByteReader(rest))
			if err != nil || hello.ServerName != name || !bytes.Equal(hello.Raw, sent) || rest.Len() != 1 {
				t.Errorf("%s in %d bytes: name %q, error %v, %d bytes kept, %d left",
					client, len(sent), hello.ServerName, err, len(hello.Raw), rest.Len())
			}
		}
	}
}

// helloWith makes a ClientHello that has these extensions only.
func helloWith(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...) // version, random
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)       // no session, one suite, no compression
	all := bytes.Join(extensions, nil)
	if extensions != nil {
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	}
	message := append([]byte{messageClientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append(binary.BigEndian.AppendUint16([]byte{recordTypeHandshake, 3, 1}, uint16(len(message))), message...)
}

// serverNames makes the extension server_name.
func serverNames(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, nameTypeHost), uint16(len(n))), n...)
	}
	list = append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)
	return append(binary.BigEndian.AppendUint16([]byte{0, extensionServerName}, uint16(len(list))), list...)
}

func TestReadRefusesAHelloThatIsNotWellFormed(t *testing.T) {
	truncated := helloWith(serverNames("a.example"))
	truncated[len(truncated)-1-len("a.example")]++ // the name is longer than its list
	for name, c := range map[string]struct {
		sent []byte
		want error
	}{
		"plain HTTP":                   {[]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), ErrMalformed},
		"another record type":          {[]byte{23, 3, 3, 0, 1, 0}, ErrMalformed},
		"another version":              {[]byte{22, 2, 0, 0, 1, 1}, ErrMalformed},
		"an empty record":              {[]byte{22, 3, 1, 0, 0}, ErrMalformed},
		"a record beyond the bound":    {[]byte{22, 3, 1, 0x40, 0}, ErrMalformed},
		"another message":              {[]byte{22, 3, 1, 0, 1, 2}, ErrMalformed},
		"too many records":             {bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 3000), ErrMalformed},
		"a hello that is cut off":      {truncated[:20], io.ErrUnexpectedEOF},
		"nothing":                      {nil, io.EOF},
		"no extensions":                {helloWith(), ErrNoName},
		"no server name":               {helloWith([]byte{0, 43, 0, 3, 2, 3, 4}), ErrNoName},
		"a name longer than its list":  {truncated, ErrMalformed},
		"an empty name":                {helloWith(serverNames("")), ErrMalformed},
		"an empty list":                {helloWith(serverNames()), ErrMalformed},
		"two names":                    {helloWith(serverNames("a.example", "b.example")), ErrMalformed},
		"the extension twice":          {helloWith(serverNames("a.example"), serverNames("b.example")), ErrMalformed},
		"a name with a slash":          {helloWith(serverNames("../a")), ErrMalformed},
		"a name with a zero byte":      {helloWith(serverNames("a\x00b")), ErrMalformed},
		"a name of 254 bytes":          {helloWith(serverNames(strings.Repeat("a", 254))), ErrMalformed},
		"a name with a trailing dot":   {helloWith(serverNames("a.example.")), ErrMalformed},
		"an odd list of cipher suites": {oddSuites(), ErrMalformed},
	} {
		if hello, err := Read(bytes.NewReader(c.sent)); !errors.Is(err, c.want) || hello.ServerName != "" {
			t.Errorf("%s: name %q, error %v, want %v", name, hello.ServerName, err, c.want)
		}
	}
	hello, err := Read(bytes.NewReader(helloWith(serverNames("a.example"))))
	if err != nil || hello.ServerName != "a.example" {
		t.Errorf("the smallest well-formed hello: %q, %v", hello.ServerName, err)
	}
}

// oddSuites is a hello with a list of cipher suites of one byte, although each suite takes two.
func oddSuites() []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 1, 0x13, 1, 0)
	message := append([]byte{messageClientHello, 0, 0, byte(len(body))}, body...)
	return append([]byte{recordTypeHandshake, 3, 1, 0, byte(len(message))}, message...)
}

func TestReadTakesAHelloUpToTheBoundAndNoLonger(t *testing.T) {
	for _, c := range []struct {
		size int // of all records
		want error
	}{{MaxHello, nil}, {MaxHello + 1, ErrMalformed}} {
		name := serverNames("a.example")
		padding := c.size - len(helloWith(name)) - 4
		sent := helloWith(name, append([]byte{0, 21, byte(padding >> 8), byte(padding)}, make([]byte, padding)...))
		if len(sent) != c.size {
			t.Fatalf("the hello has %d bytes, want %d", len(sent), c.size)
		}
		if _, err := Read(bytes.NewReader(sent)); !errors.Is(err, c.want) {
			t.Errorf("a hello of %d bytes: %v, want %v", c.size, err, c.want)
		}
	}
}

// FuzzRead compares Read with crypto/tls: a name that crypto/tls finds is the
// name that Read finds, in the bytes that Read took.
func FuzzRead(f *testing.F) {
	real := clientHello(f, &tls.Config{ServerName: "hc-0123456789ab.hosted.atoll.internal"})
	f.Add(real)
	f.Add(fragmented(real, 100))
	f.Add(clientHello(f, &tls.Config{MaxVersion: tls.VersionTLS12}))
	f.Add(helloWith(serverNames("a.example")))
	f.Add(helloWith(serverNames("a.example", "b.example")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hello, err := Read(bytes.NewReader(data))
		valid := bytes.HasPrefix(data, hello.Raw) && len(hello.Raw) <= MaxHello && hello.ServerName != "" &&
			isDNSName(hello.ServerName)
		if err == nil && !valid {
			t.Fatalf("took %d of %d bytes, name %q", len(hello.Raw), len(data), hello.ServerName)
		}
		theirs, ok := nameByCryptoTLS(data)
		theirs = strings.ToLower(theirs)
		switch {
		case err == nil && ok && theirs != hello.ServerName:
			t.Fatalf("name %q, crypto/tls reads %q", hello.ServerName, theirs)
		case err != nil && ok && theirs != "" && isDNSName(theirs) && len(data) <= MaxHello:
			t.Fatalf("%v, crypto/tls reads %q", err, theirs)
		}
	})
}

// nameByCryptoTLS returns the server name that Go's own TLS server finds; false
// when that server refuses the hello.
func nameByCryptoTLS(data []byte) (name string, ok bool) {
	_ = tls.Server(sender{bytes.NewReader(data)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, ok = h.ServerName, true
			return nil, errors.New("the name is known; end the handshake")
		},
	}).Handshake()
	return name, ok
}

// sender is a peer that sends its bytes and ignores all others.
type sender struct{ io.Reader }

func (sender) Write(b []byte) (int, error)      { return len(b), nil }
func (sender) Close() error                     { return nil }
func (sender) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (sender) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (sender) SetDeadline(time.Time) error      { return nil }
func (sender) SetReadDeadline(time.Time) error  { return nil }
func (sender) SetWriteDeadline(time.Time) error { return nil }
