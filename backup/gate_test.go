package backup

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// A closed gate holds reads back, also one that waits already; an open one and the end of the connection release them.
func TestAGateHoldsReadsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		mine, other := net.Pipe()
		conn := g.wrap(mine)
		type result struct {
			n   int
			err error
		}
		results := make(chan result, 3)
		read := func() {
			n, err := conn.Read(make([]byte, 8))
			results <- result{n, err}
		}
		g.close()
		go read()
		go io.WriteString(other, "abc")
		synctest.Wait()
		if len(results) > 0 {
			t.Fatalf("read through a closed gate: %+v", <-results)
		}
		g.open()
		if r := <-results; r.n != 3 || r.err != nil {
			t.Errorf("an open gate: %+v", r)
		}
		g.close()
		go read()
		synctest.Wait()
		conn.Close()
		if r := <-results; !errors.Is(r.err, io.ErrClosedPipe) {
			t.Errorf("a connection that was closed behind a closed gate: %+v", r)
		}
	})
}
