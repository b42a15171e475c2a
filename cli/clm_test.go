package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
)

// startCLM runs `atoll clm` on a plain port and returns when it is ready.
func startCLM(t *testing.T, args ...string) (base, ops string) {
	t.Helper()
	for range 5 { // another process may take a port first
		addrs := freeAddrs(t, 2)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		root := newRoot(&command{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
		root.SetArgs(append([]string{"clm", "serve", "--insecure-listen", addrs[0], "--ops", addrs[1], "--log-level", "error"}, args...))
		go func() { ended <- root.ExecuteContext(ctx) }()
		if err := ready("http://"+addrs[1], ended); errors.Is(err, syscall.EADDRINUSE) {
			stop()
			continue
		} else if err != nil {
			stop()
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("it ended: %v", err)
			}
			http.DefaultClient.CloseIdleConnections()
		})
		return "http://" + addrs[0], "http://" + addrs[1]
	}
	t.Fatal("no free port")
	return "", ""
}

func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// ready waits until a service is ready, or has ended.
func ready(ops string, ended <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(60 * time.Second); ; {
		res, err := http.Get(ops + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before it was ready: %w", err)
		case <-deadline:
			return errors.New("not ready within a minute")
		case <-tick.C:
		}
	}
}

// ask sends a request and decodes the answer.
func ask(t *testing.T, method, url, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s %s: %d %s", method, url, res.StatusCode, data)
	}
	return res.StatusCode, v
}

func TestCLMServesItsAPI(t *testing.T) {
	base, ops := startCLM(t, "--dsn", pgtest.DSN(t))
	if status, v := ask(t, "GET", ops+"/healthz", ""); status != 200 || fmt.Sprint(v) != "map[status:ok]" {
		t.Errorf("/healthz: %d %v", status, v)
	}
	if status, v := ask(t, "GET", ops+"/readyz", ""); status != 200 || fmt.Sprint(v) != "map[status:ok]" {
		t.Errorf("/readyz: %d %v", status, v)
	}
	if status, v := ask(t, "GET", base+"/api/hyperfleet", ""); status != 200 || v["version"] != version {
		t.Errorf("metadata: %d %v", status, v)
	}
	status, made := ask(t, "POST", base+"/api/hyperfleet/v1/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`)
	if status != 201 || made["created_by"] != "system@hyperfleet.local" {
		t.Fatalf("create: %d %v", status, made)
	}
	if status, v := ask(t, "GET", base+made["href"].(string), ""); status != 200 || v["name"] != "abc" {
		t.Errorf("get: %d %v", status, v)
	}
}
