package services

import (
	"strings"
	"testing"

	"atoll.dev/node/supervisor"
)

// TestThePreflightOfNodesSaysWhereItTried: the file system of the nodes' homes may be another.
func TestThePreflightOfNodesSaysWhereItTried(t *testing.T) {
	for want, answer := range map[string]preflightAnswer{
		"this machine can run real nodes (tried in /scratch; set TMPDIR if homes of nodes are on another file system)\n": {
			Ready: true, TriedIn: "/scratch"},
		"because nodes have no user namespaces: no idmapped mounts": {Ready: true, TriedIn: "/scratch",
			NoUserNamespace: "no idmapped mounts"},
		"because nodes have no disks of their own: no loop device": {Ready: true, TriedIn: "/scratch",
			NoDisk: "no loop device"},
		"runc": {Missing: []supervisor.Missing{{Part: "runc", Reason: "not found", Install: "install it"}}},
	} {
		var text strings.Builder
		answer.print(&text)
		if got := text.String(); !strings.Contains(got, want) || strings.Contains(got, "/scratch") != answer.Ready {
			t.Errorf("%+v is shown as %s, want %s", answer, got, want)
		}
	}
}
