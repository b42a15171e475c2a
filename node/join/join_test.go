package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/node"
)

func TestAJoinContinuesWithItsOwnKeyAndToken(t *testing.T) {
	home := t.TempDir()
	i := node.Invitation{Pool: "edge", Token: "abc123.0123456789abcdef"}
	_, err := loadOrCreateRecord(Options{Home: home})
	if err == nil || !strings.Contains(err.Error(), "no join to continue") {
		t.Errorf("without a token: %v", err)
	}
	first, err := loadOrCreateRecord(Options{Home: home, Invitation: &i})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(recordFile(home)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record with the key: %v, %v", info, err)
	}
	name, csr, err := first.certificateRequest()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(csr)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.Subject.String() != "CN=system:node:edge-abc123,O=system:nodes" {
		t.Errorf("the request is for %v, %v", request.Subject, err)
	}
	for _, again := range []*node.Invitation{nil, &i} {
		r, err := loadOrCreateRecord(Options{Home: home, Invitation: again})
		if err != nil {
			t.Fatal(err)
		}
		if other, _, err := r.certificateRequest(); err != nil || r.Key != first.Key || other != name {
			t.Errorf("the join continues with request %s, %v, want %s", other, err, name)
		}
	}
	other := node.Invitation{Pool: "edge", Token: "zzz999.0123456789abcdef"}
	if _, err := loadOrCreateRecord(Options{Home: home, Invitation: &other}); err == nil ||
		!strings.Contains(err.Error(), "node edge-abc123 already") {
		t.Errorf("another token: %v", err)
	}
	first.Removed = "it was deleted"
	if err := first.write(home); err != nil {
		t.Fatal(err)
	}
	_, err = loadOrCreateRecord(Options{Home: home, Invitation: &i})
	if err == nil || !strings.Contains(err.Error(), "it was deleted") {
		t.Errorf("after the removal: %v", err)
	}
}

// Kubelet replaces its certificate's link when it renews; it refuses a file in the place of the link.
func TestTheFirstCertificateIsALinkThatKubeletCanReplace(t *testing.T) {
	home := t.TempDir()
	r, err := newRecord(node.Invitation{Pool: "edge", Token: "abc123.0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a killed join repeats it
		if err := r.storeCertificate(home, []byte("certificate\n")); err != nil {
			t.Fatal(err)
		}
	}
	target, err := os.Readlink(certificateFile(home))
	if err != nil || filepath.IsAbs(target) { // an absolute path would be another one in the node
		t.Errorf("the link leads to %q, %v", target, err)
	}
	data, err := os.ReadFile(certificateFile(home))
	if err != nil || string(data) != "certificate\n"+r.Key {
		t.Errorf("it has %q, %v", data, err)
	}
	if !hasCertificate(home) {
		t.Error("the machine does not find its certificate")
	}
}

func TestOnlyAClearAnswerStopsAMachine(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	type step struct {
		p     presence
		lasts time.Duration // observed every followEvery
		stops bool
	}
	for name, steps := range map[string][]step{
		"the Node is gone":            {{present, 0, false}, {removed, 0, true}},
		"the cluster does not answer": {{present, 0, false}, {unknown, 24 * time.Hour, false}},
		"the router knows no such cluster": {{unrouted, unroutedLimit - followEvery, false},
			{unrouted, 2 * followEvery, true}},
		"the router knows it again": {{unrouted, unroutedLimit - followEvery, false}, {present, 0, false},
			{unrouted, unroutedLimit - followEvery, false}},
		"it is unknown, and away, and unknown again": {{unrouted, unroutedLimit - 2*followEvery, false},
			{unknown, time.Minute, false}, {unrouted, 3 * followEvery, true}},
		"it is unknown for a moment before and after a long outage": {{unrouted, followEvery, false},
			{unknown, 24 * time.Hour, false}, {unrouted, followEvery, false}, {present, 0, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var seen followState
			now := start
			for i, s := range steps {
				reason := ""
				for left := s.lasts; left >= 0 && reason == ""; left -= followEvery {
					now = now.Add(followEvery)
					reason = seen.decideStop(s.p, now)
				}
				if (reason != "") != s.stops {
					t.Errorf("step %d: reason %q", i, reason)
				}
			}
		})
	}
	t.Run("the process was halted", func(t *testing.T) {
		var seen followState
		for _, at := range []time.Duration{0, time.Hour} {
			if reason := seen.decideStop(unrouted, start.Add(at)); reason != "" {
				t.Errorf("after %s: %s", at, reason)
			}
		}
	})
	named := apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "edge-abc123")
	if !isNotFound(named, "edge-abc123") || isNotFound(named, "edge-zzz999") ||
		isNotFound(errors.New("not found"), "edge-abc123") ||
		isNotFound(&tls.CertificateVerificationError{}, "edge-abc123") {
		t.Error("an answer about another object, or none, is taken for the end of the Node")
	}
}

func TestNothingButAHomeOfAJoinIsDeleted(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	logf := func(string, ...any) {}
	for _, leave := range []func() error{
		func() error { return Leave(context.Background(), home, logf) },
		func() error { return StopAndDelete(context.Background(), home) },
	} {
		if err := leave(); err == nil || !strings.Contains(err.Error(), "no record of a join") {
			t.Errorf("leaving a directory of somebody else: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, "mine")); err != nil {
		t.Error(err)
	}
}
