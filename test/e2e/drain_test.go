package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

// TestAReplicaThatIsStoppedFailsNoRequest runs two replicas of the Platform API behind a load balancer that asks for
// their readiness, sends signed reads and changes over HTTP/1.1 and HTTP/2, which nobody sends again, and stops one
// replica by SIGTERM. No request fails, each acknowledged change is there afterwards, and a watch ends cleanly and
// goes on at the other replica.
func TestAReplicaThatIsStoppedFailsNoRequest(t *testing.T) {
	quick.Slow(t, "writes through two replicas while each stops")
	r := localtest.Shared(t)
	first, second := startPlatform(t, r, "first"), startPlatform(t, r, "second")
	balancer := startBalancer(t, first, second)
	w := &drainWorld{t: t, region: r, endpoint: "https://" + balancer.address, made: map[string]bool{}}

	workers := make([]*http.Transport, 8)
	for i := range workers {
		workers[i] = w.transport(1 + i%2)
	}
	// The watch begins before the load, whose connections would hide which replica got the connection of the watch.
	watch := w.watch(w.transport(2))
	defer watch.Body.Close()
	victim, other := first, second
	if balancer.last.Load() == second { // the watch is on the replica that ends
		victim, other = second, first
	}
	var running sync.WaitGroup
	stopped := make(chan struct{})
	stopLoad := sync.OnceFunc(func() { close(stopped) })
	defer running.Wait()
	defer stopLoad()
	for i, transport := range workers {
		running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stopped:
					return
				case <-time.After(betweenRequests):
					if n%16 == 0 && n < 16*changesEach {
						w.makeGroup(transport, fmt.Sprintf("drain-%d-%d", i, n))
					} else {
						w.request(transport, http.MethodGet, "/clusters?limit=1", nil, http.StatusOK)
					}
				}
			}
		})
	}
	testsite.Eventually(t, "both replicas serve", func() error {
		if first.served.Load() < 2 || second.served.Load() < 2 || w.answered.Load() < 100 {
			return fmt.Errorf("%d and %d connections, %d answers", first.served.Load(), second.served.Load(), w.answered.Load())
		}
		return nil
	})

	if err := victim.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	events, err := io.ReadAll(bufio.NewReader(watch.Body))
	if err != nil {
		t.Errorf("the watch ended with %v", err)
	}
	cursor := lastCursor(t, events)
	if <-victim.ended; victim.err != nil {
		t.Errorf("the stopped replica: %v", victim.err)
	}
	before := w.answered.Load()
	resumed := w.watch(w.transport(2), "cursor="+cursor)
	resumed.Body.Close()
	if balancer.last.Load() != other || resumed.StatusCode != http.StatusOK {
		t.Errorf("the watch went on with %s", resumed.Status)
	}
	testsite.Eventually(t, "the load goes on", func() error {
		if n := w.answered.Load(); n < before+200 && w.failed.Load() == 0 {
			return fmt.Errorf("%d answers since the end of the replica", n-before)
		}
		return nil
	})
	stopLoad()
	running.Wait()
	t.Logf("%d answers, %d of them after the replica had ended", w.answered.Load(), w.answered.Load()-before)

	authorization := r.API().Authorization("")
	groups, err := authorization.Groups(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		delete(w.made, g.Name)
		if err := authorization.DeleteGroup(context.Background(), g.GroupID); err != nil {
			t.Error(err)
		}
	}
	if len(w.made) > 0 {
		t.Errorf("acknowledged groups that are lost: %v", slices.Sorted(maps.Keys(w.made)))
	}
}

const (
	// changesEach is how many groups a worker makes; an account may have 500.
	changesEach = 50
	// betweenRequests is the time between two requests of one of the eight workers: an account may send 500 lists in a
	// second.
	betweenRequests = 25 * time.Millisecond
)

// drainWorld sends the load.
type drainWorld struct {
	t        *testing.T
	region   *localtest.Region
	endpoint string

	answered, failed atomic.Int64
	mu               sync.Mutex
	made             map[string]bool // acknowledged groups
}

// transport returns a transport with connections of its own, of HTTP/1.1 or HTTP/2.
func (w *drainWorld) transport(version int) *http.Transport {
	pem, err := os.ReadFile(w.region.Env["ATOLL_CA"])
	if err != nil {
		w.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(version == 1)
	transport.Protocols.SetHTTP2(version == 2)
	w.t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// send sends one signed request and returns the answer with its whole body.
func (w *drainWorld) send(by *http.Transport, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequest(method, w.endpoint+"/api/v0"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	err = client.Sign(req, body, client.Credentials{AccessKeyID: w.region.Env["AWS_ACCESS_KEY_ID"],
		SecretAccessKey: w.region.Env["AWS_SECRET_ACCESS_KEY"], Region: w.region.Env["AWS_REGION"]}, time.Now())
	if err != nil {
		return nil, err
	}
	return by.RoundTrip(req)
}

// request sends a request and fails the test when the answer has not the wanted status.
func (w *drainWorld) request(by *http.Transport, method, path string, body []byte, want int) (isDone bool) {
	res, err := w.send(by, method, path, body)
	if err == nil {
		var text []byte
		text, err = io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil && res.StatusCode != want {
			err = fmt.Errorf("%s: %s", res.Status, text)
		}
	}
	if err != nil {
		w.failed.Add(1)
		w.t.Errorf("%s %s: %v", method, path, err)
		return false
	}
	w.answered.Add(1)
	return true
}

// makeGroup makes a group of policies, the change of this test.
func (w *drainWorld) makeGroup(by *http.Transport, name string) {
	if w.request(by, http.MethodPost, "/authz/groups", fmt.Appendf(nil, `{"name":%q}`, name), http.StatusCreated) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.made[name] = true
	}
}

// watch opens a watch of clusters.
func (w *drainWorld) watch(by *http.Transport, query ...string) *http.Response {
	w.t.Helper()
	res, err := w.send(by, http.MethodGet, "/clusters?"+strings.Join(append(query, "watch=true"), "&"), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// lastCursor returns the cursor of the last event that has one.
func lastCursor(t *testing.T, events []byte) (cursor string) {
	t.Helper()
	for line := range bytes.Lines(events) {
		var event struct{ Type, Cursor string }
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("the watch has a broken line: %q: %v", line, err)
		}
		if event.Cursor != "" {
			cursor = event.Cursor
		}
	}
	if cursor == "" {
		t.Fatalf("no event has a cursor: %s", events)
	}
	return cursor
}

// platformReplica is a replica of the Platform API beside those of the region. ended is closed when it has ended.
type platformReplica struct {
	cmd          *exec.Cmd
	address, ops string
	served       atomic.Int64 // connections that the balancer gave it
	ended        chan struct{}
	err          error
}

// startPlatform starts a replica with the flags of the region's own, ports of its own and 10 s of drain: while it
// drains, the balancer and the workers, which may wait for a processor, must move to the other replica.
func startPlatform(t *testing.T, r *localtest.Region, name string) *platformReplica {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.Process("platform").PID))
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	p := &platformReplica{address: testsite.FreeAddress(t), ops: testsite.FreeAddress(t), ended: make(chan struct{})}
	identity := filepath.Join(t.TempDir(), name)
	for i := 0; i < len(args)-1; i++ {
		switch args[i] {
		case "--listen":
			args[i+1] = p.address
		case "--ops":
			args[i+1] = p.ops
		case "--identity":
			if err := os.CopyFS(identity, os.DirFS(args[i+1])); err != nil {
				t.Fatal(err)
			}
			args[i+1] = identity
		case "--azure-listen", "--azure-metadata":
			args = slices.Delete(args, i, i+2)
			i--
		}
	}
	args = append(args, "--drain-for", "10s")
	p.cmd = exec.Command(args[0], args[1:]...)
	output, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	log := func() string {
		content, _ := os.ReadFile(output.Name())
		return string(content)
	}
	p.cmd.Stderr = output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		if strings.Contains(log(), "requests cut") || t.Failed() {
			t.Errorf("log of the %s replica:\n%s", name, log())
		}
	})
	testsite.Eventually(t, name+" is ready", func() error {
		if !p.isReady() {
			return fmt.Errorf("not ready: %s", log())
		}
		return nil
	})
	return p
}

func (p *platformReplica) isReady() bool {
	res, err := (&http.Client{Timeout: testsite.HangLimit}).Get("http://" + p.ops + "/readyz")
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// balancer forwards connections in turn to replicas that were ready when it asked last, which it does each 100 ms, and
// to the one that was ready last while none is: a slow database makes both unready for a moment.
type balancer struct {
	address string
	last    atomic.Pointer[platformReplica] // that got the last connection
}

func startBalancer(t *testing.T, first, second *platformReplica) *balancer {
	replicas := []*platformReplica{first, second}
	b := &balancer{}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	ready, readyAt := make([]atomic.Bool, len(replicas)), make([]atomic.Int64, len(replicas))
	for i, r := range replicas {
		ready[i].Store(true)
		running.Go(func() {
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
					isReady := r.isReady()
					if isReady {
						readyAt[i].Store(time.Now().UnixNano())
					}
					ready[i].Store(isReady)
				}
			}
		})
	}
	l := testsite.Listen(t)
	b.address = l.Addr().String()
	running.Go(func() {
		for turn := 0; ; turn++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			i := turn % len(replicas)
			if j := (i + 1) % len(replicas); !ready[i].Load() && (ready[j].Load() || readyAt[j].Load() > readyAt[i].Load()) {
				i = j
			}
			replicas[i].served.Add(1)
			b.last.Store(replicas[i])
			running.Go(func() { forward(ctx, conn, replicas[i].address) })
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		running.Wait()
	})
	return b
}

// forward copies bytes both ways until one side ends or ctx does.
func forward(ctx context.Context, from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	defer context.AfterFunc(ctx, func() {
		from.Close()
		to.Close()
	})()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(from, to)
		from.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(to, from)
	to.(*net.TCPConn).CloseWrite()
	<-back
}
