package maestro

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
)

// filled returns a server whose database has n bundles of about size bytes.
// They are copies of one, made in the database, before the server follows it.
func (s *site) filled(n, size int, change ...func(*Options)) *instance {
	s.T.Helper()
	first := s.start()
	first.consumer("mc1")
	first.source().create("mc1", "w0", 1)
	first.end()
	conn, err := pgx.Connect(context.Background(), s.dsn)
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), `
		insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		select kind, 'copy-' || lpad(n::text, 6, '0'), scope, name, version, generation, jsonb_set(spec, '{metadata,labels}', jsonb_build_object('n', (n % 1000)::text, 'all', 'x')), status,
			convert_to(replace(replace(convert_from(wire, 'UTF8'), '"w0"', '"copy-' || n || '"'), '"value":"1"', '"value":"' || repeat('x', $2) || '"'), 'UTF8'), created_at + n * interval '1 ms', updated_at, n
		from document, generate_series(1, $1) n where kind = 'Bundle' and id = 'w0'`, n, size); err != nil {
		s.T.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "analyze document"); err != nil {
		s.T.Fatal(err)
	}
	return s.start(change...)
}

// TestALongListDoesNotGrowTheServer holds the memory of a list that is far
// longer than what is allowed to be held of it.
func TestALongListDoesNotGrowTheServer(t *testing.T) {
	const count, size = 6000, 16 << 10
	m := newSite(t).filled(count, size)
	inUse := func() uint64 { // without garbage, whose size depends on when Go collects it
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before, peak := inUse(), uint64(0)
	req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=65500", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := m.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	total := int64(0)
	for err == nil {
		var n int64
		n, err = io.CopyN(io.Discard, resp.Body, 8<<20)
		total += n
		peak = max(peak, inUse())
	}
	if err != io.EOF {
		t.Fatalf("after %d bytes: %v", total, err)
	}
	if total < count*size {
		t.Fatalf("%d bytes", total)
	}
	grown := int64(peak) - int64(before)
	t.Logf("a list of %d MB grew the heap by %d KB", total>>20, grown>>10)
	if grown > 24<<20 {
		t.Error("the server holds too much of a list")
	}
}

// TestLabelsAreFoundByTheirIndex counts the uses of the index and of others: a
// search that went through all bundles of the source would find the same.
func TestLabelsAreFoundByTheirIndex(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.filled(20_000, 200)
	conn, err := pgx.Connect(t.Context(), site.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	read := func() (rows int64) {
		eventually(t, "statistics are there", func() error {
			return conn.QueryRow(t.Context(),
				`select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_user_tables where relname = 'document'`).Scan(&rows)
		})
		return rows
	}
	before := read()
	for n := range 20 {
		for _, search := range []string{
			`source='test-source' and consumer_name='mc1' and payload->'metadata'->'labels'@>'{"n":"%d"}'`,
			`source='test-source' and payload->'metadata'->'labels'->>'n'in('%d','none')`,
			`payload->'metadata'->'labels'->>'n'='%d'`,
		} {
			if got := m.bundles("search", fmt.Sprintf(search, n)); len(got) != 20 {
				t.Fatalf("%s: %d bundles", search, len(got))
			}
		}
	}
	m.end() // the server's sessions report what they read at the latest now
	eventually(t, "the reads are counted", func() error {
		if read()-before < 60*20 {
			return errors.New("not yet")
		}
		return nil
	})
	if rows := read() - before; rows > 60*200 {
		t.Errorf("60 searches for 20 bundles each read %d rows", rows)
	}
}

// TestABrokenListDoesNotLookWhole takes the database away in the middle of a
// list.
func TestABrokenListDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"identity", "gzip"} {
		t.Run(encoding, func(t *testing.T) {
			site := newSite(t)
			m := site.filled(3000, 16<<10)
			req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=-1", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := m.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			conn, err := pgx.Connect(t.Context(), site.dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if encoding == "gzip" {
				// Compressed, the list may be out already; what counts is that
				// it is whole or broken.
				body := io.Reader(resp.Body)
				_, err := conn.Exec(t.Context(),
					"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and "+
						"pid <> pg_backend_pid()")
				if err != nil {
					t.Fatal(err)
				}
				z, err := gzip.NewReader(body)
				if err != nil {
					return
				}
				data, err := io.ReadAll(z)
				if valid := json.Valid(data); valid != (err == nil) {
					t.Errorf("%d bytes, valid %v: %v", len(data), valid, err)
				}
				return
			}
			first := make([]byte, 1<<10)
			if _, err := io.ReadFull(resp.Body, first); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status, err)
			}
			if _, err := conn.Exec(t.Context(),
				"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid "+
					"<> pg_backend_pid()"); err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, resp.Body)
			if err == nil {
				t.Errorf("a list whose source was lost ends well after %d bytes", n)
			}
		})
	}
}

// TestSlowReadersLeaveConnectionsForOthers holds long lists unread, more than
// there are connections.
func TestSlowReadersLeaveConnectionsForOthers(t *testing.T) {
	m := newSite(t).filled(2000, 16<<10, func(o *Options) { o.MaxConns, o.Adapt = 8, nil })
	done := make(chan *http.Response, 12)
	for range cap(done) {
		go func() {
			req, err := http.NewRequest("GET", m.url+"/api/maestro/v1/resource-bundles?size=-1", nil)
			if err != nil {
				panic(err)
			}
			req.Header.Set("Accept-Encoding", "identity") // compressed it would fit into the buffers between
			resp, err := m.http.Do(req)
			if err != nil {
				resp = nil
			}
			done <- resp
		}()
	}
	served, refused := 0, 0
	for range cap(done) {
		resp := <-done
		if resp == nil {
			t.Fatal("no answer")
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			served++
		case http.StatusServiceUnavailable:
			refused++
		default:
			t.Error(resp.Status)
		}
	}
	if served < 4 {
		t.Errorf("%d are served, %d refused", served, refused)
	}
	// A read that finds no connection is refused after the time for which a request waits for one.
	for n := range 20 {
		m.bundle(work.ID(fmt.Sprintf("copy-%06d", n+1)))
	}
	if len(m.bundles("size", "10")) != 10 {
		t.Error("a short list is not served")
	}
}
