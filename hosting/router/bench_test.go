package router

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"atoll.dev/sni"
)

// benchRouter is a router before a backend that echoes its input.
func benchRouter(b *testing.B) (address string) {
	b.Helper()
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { backend.Close() })
	go func() {
		for {
			conn, err := backend.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := sni.Read(conn); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	dir := b.TempDir()
	if err := writeTable(filepath.Join(dir, "routes.json"),
		table{Revision: 1, Routes: []Route{{ServerName: "a.example", Backend: backend.Addr().String()}}}); err != nil {
		b.Fatal(err)
	}
	r := New(Options{Dir: dir, Control: filepath.Join(dir, "none"),
		Limits: Limits{Handshakes: 1 << 30}, Log: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx, l) }()
	b.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

// BenchmarkConnection is a connection from its begin to the first byte back.
func BenchmarkConnection(b *testing.B) {
	address := benchRouter(b)
	hello := append(helloFor("a.example"), 'x')
	for b.Loop() {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = conn.Write(hello)
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}

// BenchmarkBytes measures the bytes in both directions on one connection, in pieces of 64 KiB.
func BenchmarkBytes(b *testing.B) {
	const piece = 64 << 10
	conn, err := net.Dial("tcp", benchRouter(b))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(helloFor("a.example"))
	out, in := make([]byte, piece), make([]byte, piece)
	b.SetBytes(piece)
	for b.Loop() {
		if _, err := conn.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadHello is the parser alone.
func BenchmarkReadHello(b *testing.B) {
	hello := helloFor("hc-0123456789ab.hosted.local-1.atoll.internal")
	for b.Loop() {
		if _, err := sni.Read(&once{b: hello}); err != nil {
			b.Fatal(err)
		}
	}
}

type once struct{ b []byte }

func (o *once) Read(p []byte) (int, error) {
	n := copy(p, o.b)
	o.b = o.b[n:]
	return n, nil
}
