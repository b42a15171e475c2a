package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	api "atoll.dev/api/clm"
	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/local"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

const lifecycleEntities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [placement, hosted-cluster]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, required_adapters: [node-pool]}
- {kind: Channel, plural: channels}
- {kind: Version, plural: versions, parent_kind: Channel}
- {kind: ManagementCluster, plural: managementclusters}
`

// lifecycleHome runs a CLM as in a region, and creates the part of a home that its operator needs.
// It also opens a plain listener and returns its URL.
func lifecycleHome(t testing.TB, home string) (plain string) {
	t.Helper()
	site := testsite.NewIn(t, filepath.Join(home, "pki"))
	manager := testworld.StartCLM(site, testworld.CLMOptions{Entities: lifecycleEntities, Fleet: true})
	address, err := net.ResolveTCPAddr("tcp", manager.Secure)
	if err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(local.State{Format: 1, Region: "test", Ports: map[string]int{"clm-http": address.Port}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "region.json"), state, 0o600); err != nil {
		t.Fatal(err)
	}
	return manager.URL
}

// live is a command that runs in parallel with a script, and its output.
type live struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed at each write
}

func (l *live) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.more)
	l.more = make(chan struct{})
	return len(p), nil
}

// await waits until the output matches.
func (l *live) await(ts *testscript.TestScript, pattern string) {
	re, err := regexp.Compile("(?m)" + pattern)
	ts.Check(err)
	limit := time.After(testsite.HangLimit)
	for {
		l.mu.Lock()
		found, text, more := re.Match(l.text), l.text, l.more
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-limit:
			ts.Fatalf("no match for %q in:\n%s", pattern, text)
		}
	}
}

// The scripts of testdata/clm run where a CLM runs. Five commands are theirs:
//
//	id VAR KIND NAME                              sets VAR to the resource's id
//	place CLUSTER...                              places clusters; they wait until they have room
//	report KIND ID ADAPTER GENERATION TYPE=STATUS[:REASON[:MESSAGE]]... [data=JSON]
//	start NAME ARG...                             runs "atoll ARG..." until the script ends
//	seen NAME REGEXP                              waits until it has written this
func TestCLMScripts(t *testing.T) {
	dial := func(ts *testscript.TestScript) *clmclient.Client {
		c, err := clmclient.New(clmclient.Options{Endpoint: ts.Getenv("CLM")})
		ts.Check(err)
		ts.Defer(c.Close)
		return c
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/clm", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "home")
			if err := os.Mkdir(home, 0o700); err != nil {
				return err
			}
			e.Setenv("ATOLL_HOME", home)
			e.Setenv("CLM", lifecycleHome(e.T().(testing.TB), home))
			return nil
		},
		Cmds: addLiveCommands(t, map[string]func(*testscript.TestScript, bool, []string){
			"id": func(ts *testscript.TestScript, _ bool, args []string) {
				r, err := dial(ts).Named(t.Context(), clmclient.Collection(args[1]), args[2])
				ts.Check(err)
				ts.Setenv(args[0], r.ID)
			},
			"place": func(ts *testscript.TestScript, _ bool, args []string) {
				c := dial(ts)
				for _, id := range args {
					testsite.Eventually(t, "the cluster has a place", func() error {
						p, err := c.Place(t.Context(), cluster.ID(id))
						if err == nil && p.State != fleet.Placed {
							err = errors.New(p.Reason)
						}
						return err
					})
				}
			},
			"report": func(ts *testscript.TestScript, _ bool, args []string) {
				generation, err := strconv.Atoi(args[3])
				ts.Check(err)
				report := api.AdapterStatusCreate{Adapter: args[2], ObservedGeneration: int32(generation),
					ObservedTime: time.Now()}
				for _, arg := range args[4:] {
					kind, rest, _ := strings.Cut(arg, "=")
					if kind == "data" {
						report.Data = json.RawMessage(rest)
						continue
					}
					part := append(strings.SplitN(rest, ":", 3), "", "")
					report.Conditions = append(report.Conditions, api.ReportedCondition{Type: kind, Status: part[0],
						Reason: optional(part[1]), Message: optional(part[2])})
				}
				taken, err := dial(ts).Report(t.Context(), clmclient.Collection(args[0]), args[1], report)
				ts.Check(err)
				if !taken {
					ts.Fatalf("the report was dropped")
				}
			},
		}),
	})
}

// addLiveCommands adds the commands start, seen, and
//
//	stop NAME        presses Ctrl-C, and waits until it has ended
func addLiveCommands(t *testing.T, commands map[string]func(*testscript.TestScript, bool, []string)) map[string]func(
	*testscript.TestScript, bool, []string) {
	type started struct {
		*live
		stop func() // may be called again
	}
	running := sync.Map{} // of started, by script and name
	find := func(ts *testscript.TestScript, name string) started {
		s, ok := running.Load(ts.Getenv("WORK") + name)
		if !ok {
			ts.Fatalf("nothing runs as %s", name)
		}
		return s.(started)
	}
	commands["start"] = func(ts *testscript.TestScript, _ bool, args []string) {
		l := &live{more: make(chan struct{})}
		root := newRoot(&terminal.Session{In: strings.NewReader(""), Out: l, Err: l})
		root.SetArgs(append([]string{"--home", ts.Getenv("ATOLL_HOME")}, args[1:]...))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- root.ExecuteContext(ctx) }()
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("atoll %q ended: %v", args[1:], err)
			}
		})
		running.Store(ts.Getenv("WORK")+args[0], started{l, stop})
		ts.Defer(stop)
	}
	commands["seen"] = func(ts *testscript.TestScript, _ bool, args []string) { find(ts, args[0]).await(ts, args[1]) }
	commands["stop"] = func(ts *testscript.TestScript, _ bool, args []string) { find(ts, args[0]).stop() }
	return commands
}

// optional is nil for an empty text.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
