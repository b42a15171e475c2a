package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"atoll.dev/api/platform"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"atoll": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// The commands as a person types them, where no region runs; test/e2e runs
// them where one does.
func TestScripts(t *testing.T) {
	// It is there and says its version; nothing here starts it.
	kube := filepath.Join(t.TempDir(), "atoll-kube")
	if err := os.WriteFile(kube, []byte("#!/bin/sh\necho v1.2.3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ATOLL_HOME", e.WorkDir+"/home")
			e.Setenv("ATOLL_ENDPOINT", "")
			e.Setenv("ATOLL_KUBE_BIN", kube)
			return nil
		}})
}

func TestAgoAndTook(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 3 * time.Hour: "3h",
		72 * time.Hour: "3d",
	} {
		if got := ago(now.Add(-d), now); got != want {
			t.Errorf("ago(%s) = %s, want %s", d, got, want)
		}
	}
	if got := ago(time.Time{}, now); got != "never" {
		t.Errorf("ago of no time = %s", got)
	}
	for d, want := range map[time.Duration]string{1234 * time.Nanosecond: "0s", 12345 * time.Microsecond: "12ms",
		1234567 * time.Microsecond: "1.23s"} {
		if got := took(d); got != want {
			t.Errorf("took(%s) = %s, want %s", d, got, want)
		}
	}
}

func TestExportsAreQuoted(t *testing.T) {
	for s, want := range map[string]string{"": "''", "plain/Value+=": "plain/Value+=", "with space": "'with space'",
		"it's": `'it'\''s'`, "$(rm)": "'$(rm)'"} {
		if got := shellQuote(s); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestWhyLeavesOutWhatHasNotHappened(t *testing.T) {
	at := func(ms int) *time.Time { v := time.UnixMilli(int64(ms)); return &v }
	s := stagesOf(platform.Work{ID: "1", Generation: 2, Delivery: &platform.Delivery{AcceptedAt: at(1000),
		SentAt: at(1005), Attempts: 3, LastError: "broker away"}})
	var got []string
	for _, st := range s.Stages {
		got = append(got, st.Stage+":"+st.After)
	}
	if len(got) != 4 || got[0] != "accepted:" || got[1] != "sent:5ms" || got[2] != "received:" ||
		s.Stages[3].At != nil || s.LastError != "broker away" {
		t.Errorf("stages %v, %+v", got, s)
	}
}
