package clm

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
)

// The test limits round trips, not times.
func TestRequestsTakeFewRoundTrips(t *testing.T) {
	trips, dsn := counted(t, pgtest.DSN(t))
	a := startOn(t, dsn)
	path := "/clusters/" + a.cluster("first")
	now := time.Now().UTC()
	report := func(i int) string { // of one moment only so many are taken as are remembered
		return fmt.Sprintf(
			`{"adapter":"dns","observed_generation":1,"observed_time":%q,"data":{"note":"%d"},"conditions":[
			{"type":"Available","status":"True"},{"type":"Applied","status":"True"},{"type":"Health","status":"True"}]}`,
			now.Add(time.Duration(i)*time.Millisecond).Format(time.RFC3339Nano), i)
	}
	same := func(i int) string { return strings.Replace(report(i), fmt.Sprintf(`"%d"`, i), `"same"`, 1) }
	for _, c := range []struct {
		what string
		want int64
		do   func(i int)
	}{
		{what: "GET", want: 1, do: func(int) { a.do("GET", path, "").want(200) }},
		{what: "GET of a list", want: 1, do: func(int) { a.do("GET", "/clusters", "").want(200) }},
		{what: "GET by a search", want: 1, do: func(int) {
			a.do("GET", "/clusters?search="+url.QueryEscape(
				"labels.env='x'"), "").want(200)
		}},
		{what: "POST", want: 1, do: func(i int) {
			a.do("POST", "/clusters", fmt.Sprintf(`{"kind":"Cluster","name":"post-%d","spec":{}}`, i)).want(201)
		}},
		{what: "POST with a key", want: 3, do: func(i int) {
			a.do("POST", "/clusters", fmt.Sprintf(`{"kind":"Cluster","name":"key-%d","spec":{}}`, i),
				fmt.Sprint("Idempotency-Key: ", i)).want(201)
		}},
		{what: "POST below an owner", want: 3, do: func(i int) {
			a.do("POST", path+"/nodepools", fmt.Sprintf(`{"kind":"NodePool","name":"pool-%d","spec":{}}`, i)).want(201)
		}},
		{what: "PATCH", want: 2, do: func(i int) {
			a.do("PATCH", path, fmt.Sprintf(`{"spec":{"nodes":%d}}`, i+1)).want(
				200)
		}},
		{what: "PATCH that changes nothing", want: 1, do: func(int) { a.do("PATCH", path, `{"labels":{}}`).want(200) }},
		{what: "PUT of a report", want: 1, do: func(i int) { a.do("PUT", path+"/statuses", report(i)).want(201) }},
		{what: "PUT of a later report of the same content", want: 1, do: func(i int) {
			a.do("PUT", path+"/statuses", same(200+i)).want(201)
		}},
		{what: "PUT of the same report", want: 1, do: func(int) {
			a.do("PUT", path+"/statuses", same(200)).want(
				201)
		}},
	} {
		// The least of several: each new connection prepares its statements once, and CLM's own queries
		// are counted with a request's. On a busy machine many requests in a row may meet one of these.
		least := int64(1 << 30)
		for i := 0; i < 8 || i < 100 && least > c.want; i++ {
			before := trips.Load()
			c.do(i)
			least = min(least, trips.Load()-before)
		}
		if least != c.want {
			t.Errorf("a %s takes %d round trips to the database, want %d", c.what, least, c.want)
		}
	}
}

// counted puts a relay before a database that counts the round trips of requests. Followers and
// listeners have connections of their own, identified by their application_name.
func counted(t *testing.T, dsn string) (*atomic.Int64, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	socket := ".s.PGSQL." + q.Get("port")
	real, dir := filepath.Join(q.Get("host"), socket), t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	trips := &atomic.Int64{}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", real)
			if err != nil {
				client.Close()
				continue
			}
			group.Go(func() { defer client.Close(); _, _ = io.Copy(client, server) })
			group.Go(func() { defer server.Close(); relay(server, client, trips) })
		}
	})
	t.Cleanup(func() { l.Close(); group.Wait() }) // after the server has closed its connections
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return trips, u.String()
}

// relay forwards a client's messages and counts those that wait for an answer: Sync and Query.
func relay(server io.Writer, client io.Reader, trips *atomic.Int64) {
	var head [5]byte
	if _, err := io.ReadFull(client, head[:4]); err != nil {
		return
	}
	startup := make([]byte, binary.BigEndian.Uint32(head[:4]))
	copy(startup, head[:4])
	if _, err := io.ReadFull(client, startup[4:]); err != nil {
		return
	}
	if _, err := server.Write(startup); err != nil {
		return
	}
	requests := strings.Contains(string(startup), "application_name\x00atoll\x00")
	for {
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return
		}
		if requests && (head[0] == 'S' || head[0] == 'Q') {
			trips.Add(1)
		}
		if _, err := server.Write(head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(server, client, int64(binary.BigEndian.Uint32(head[1:]))-4); err != nil {
			return
		}
	}
}
