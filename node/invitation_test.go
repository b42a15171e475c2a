package node

import (
	"strings"
	"testing"
)

func TestAnInvitationIsReadAsItWasWritten(t *testing.T) {
	i := Invitation{Address: "region.example.org:6443", ServerName: "hc-1.example.org", CA: ca(t), Pool: "edge",
		Token: "abc123.0123456789abcdef"}
	text, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseInvitation(" " + text + "\n")
	if err != nil || got != i {
		t.Errorf("it is read as %+v, %v", got, err)
	}
	if got.Node() != "edge-abc123" || got.TokenID() != "abc123" {
		t.Errorf("its node is %s, its token %s", got.Node(), got.TokenID())
	}
	for what, change := range map[string]func(*Invitation){
		"an address without a port": func(i *Invitation) { i.Address = "region.example.org" },
		"no server name":            func(i *Invitation) { i.ServerName = "" },
		"no authority":              func(i *Invitation) { i.CA = "" },
		"no pool":                   func(i *Invitation) { i.Pool = "" },
		"another kind of token":     func(i *Invitation) { i.Token = "secret" },
	} {
		wrong := i
		change(&wrong)
		text, err := wrong.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseInvitation(text); err == nil || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%s: error %v", what, err)
		}
	}
	for _, text := range []string{"", "token", "e30", "bm90IGpzb24", text + "x", strings.Repeat("A", maxInvitation+1)} {
		if _, err := ParseInvitation(text); err == nil {
			t.Errorf("%.20q is read", text)
		}
	}
}

func TestATokenOfOnePoolNamesNoNodeOfAnother(t *testing.T) {
	if a, b := JoinedName("a", "bbbbbb"), JoinedName("a-b", "bbbbbb"); a == b {
		t.Errorf("both are %s", a)
	}
	for group, want := range map[string]string{JoinGroup("a"): "a", JoinGroup("a-b"): "a-b", JoinGroup(""): "",
		"system:bootstrappers:atoll:node:a-0": "", "system:bootstrappers:atoll:pool:a": "", "system:bootstrappers": ""} {
		pool, ok := PoolOfGroup(group)
		if ok != (want != "") || ok && pool != want {
			t.Errorf("group %s is of pool %q, %t, want %q", group, pool, ok, want)
		}
	}
}
