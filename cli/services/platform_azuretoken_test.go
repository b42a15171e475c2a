package services

import (
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestFlagsOfAzureTokens checks that the region does not start with flags that would take tokens of others.
func TestFlagsOfAzureTokens(t *testing.T) {
	good := []string{"--azure-token-issuer=https://sts.example/x", "--azure-token-tenant=t", "--azure-token-audience=a",
		"--azure-token-application=b", "--azure-token-host=rp.example,rp2.example:8444", "--azure-token-host=rp3.example"}
	for name, c := range map[string]struct {
		args []string
		want string // part of the error; "" for none
	}{
		"all":                  {good, ""},
		"no host":              {good[:4], ""},
		"none":                 {nil, ""},
		"a host alone":         {good[4:], "--azure-token-host needs --azure-token-issuer"},
		"an empty application": {append(slices.Clone(good), "--azure-token-application=c,"), "--azure-token-application"},
		"an empty audience":    {append(slices.Clone(good), "--azure-token-audience=c, ,d"), "--azure-token-audience"},
		"an empty host":        {append(slices.Clone(good), "--azure-token-host=,rp.example"), "--azure-token-host"},
	} {
		var f azureTokenFlags
		cmd := &cobra.Command{}
		f.addFlags(cmd)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err := f.check("127.0.0.1:0")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

func TestTheNamesOfACertificateAreHostsWithoutPatterns(t *testing.T) {
	got := certificateHosts(&x509.Certificate{DNSNames: []string{"rp.example", "*.example"},
		IPAddresses: []net.IP{net.IPv6loopback}})
	if !slices.Equal(got, []string{"rp.example", "::1"}) {
		t.Errorf("%v", got)
	}
}
