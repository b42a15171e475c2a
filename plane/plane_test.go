package plane_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

func TestAPlaneIsReadyFoundAgainAndStopped(t *testing.T) {
	p := planetest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	r, err := p.Config.Readiness()
	if err != nil || r.PID != p.PID || r.Address != p.Config.Address {
		t.Fatalf("readiness %+v, %v; want pid %d at %s", r, err, p.PID, p.Config.Address)
	}
	again, err := plane.Start(p.Config, plane.Options{})
	if err != nil || !again.Adopted || again.PID != p.PID {
		t.Fatalf("a second start gave %+v, %v; want pid %d adopted", again, err, p.PID)
	}
	if err := again.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if pid, ok := plane.Running(p.Config.Dir); ok {
		t.Fatalf("process %d still holds the directory", pid)
	}
	if err := p.Config.Ready(ctx); !errors.Is(err, plane.ErrNotReady) {
		t.Fatalf("a stopped plane: %v", err)
	}
	if err := again.Stop(ctx); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}
}

func TestAPlaneThatCannotStartSaysWhy(t *testing.T) {
	p := planetest.Shared(t)
	c := p.Config
	c.Dir = t.TempDir() // its address is taken
	second, err := plane.Start(c, plane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = second.Wait(t.Context())
	if !errors.Is(err, plane.ErrExited) {
		t.Fatalf("error %v, want %v", err, plane.ErrExited)
	}
	if want := "address already in use"; !strings.Contains(err.Error(), want) {
		t.Fatalf("error %q does not say %q", err, want)
	}
}

func TestArguments(t *testing.T) {
	c := plane.Config{Name: "n", Dir: "/d", Address: "127.0.0.1:1", ExternalHosts: []string{"h"}, ServiceCIDR: "10.0.0.0/16", SimulatedNodes: true}
	want := "serve --data-dir /d --listen 127.0.0.1:1 --name n --external-host h --service-cidr 10.0.0.0/16 --simulated-nodes"
	if got := strings.Join(c.Args(), " "); got != want {
		t.Fatalf("%s\nwant\n%s", got, want)
	}
}
