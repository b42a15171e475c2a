package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/test/testsite"
)

// configText returns a valid config with the given changes, as pairs of a member's path and its JSON value.
func configText(t *testing.T, changes ...string) []byte {
	t.Helper()
	var whole map[string]any
	const text = `{"name": "w1", "home": "/var/lib/atoll/w1", "programs": "/usr/bin/atoll-node",
		"apiServer": {"address": "127.0.0.1:6443", "tlsServerName": "api.c1.example.org"},
		"bootstrapToken": "t0ken",
		"labels": {"hypershift.openshift.io/nodePool": "workers", "node.kubernetes.io/instance-type": "m6a.large"},
		"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}],
		"network": {"clusterCIDR": "10.132.0.0/14", "serviceCIDR": "172.31.0.0/16", "clusterDNS": "172.31.0.10",
			"podCIDR": "10.132.3.0/24", "bridge": "atoll-c1", "address": "10.90.3.11/24", "gateway": "10.90.3.1"},
		"resources": {"cpu": "2", "memory": "8Gi"}}`
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		t.Fatal(err)
	}
	whole["apiServer"].(map[string]any)["ca"] = ca(t)
	for i := 0; i < len(changes); i += 2 {
		path, at := strings.Split(changes[i], "."), whole
		for _, member := range path[:len(path)-1] {
			if _, exists := at[member]; !exists {
				at[member] = map[string]any{}
			}
			at = at[member].(map[string]any)
		}
		var value any
		if err := json.Unmarshal([]byte(changes[i+1]), &value); err != nil {
			t.Fatal(err)
		}
		at[path[len(path)-1]] = value
	}
	data, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ca returns a PEM certificate.
func ca(t *testing.T) string {
	t.Helper()
	certificate, _ := testsite.New(t).CertificatePEM("maestro")
	return string(certificate)
}

func TestAConfigGetsTheDefaults(t *testing.T) {
	c, err := ParseConfig(configText(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.ProviderID != "atoll:///w1" || c.APIServer.UnnamedAddress != "127.0.0.1:6443" || c.Resources.Pods != 110 {
		t.Errorf("defaults: provider id %q, unnamed address %q, %d pods", c.ProviderID, c.APIServer.UnnamedAddress,
			c.Resources.Pods)
	}
	if c.Network.IP().String() != "10.90.3.11" {
		t.Errorf("the address is %s", c.Network.IP())
	}
}

func TestAConfigWithAMistakeIsRefusedWithTheMember(t *testing.T) {
	for name, test := range map[string]struct {
		changes []string
		want    string
	}{
		"name":             {[]string{"name", `"W_1"`}, "name: "},
		"relative home":    {[]string{"home", `"nodes/w1"`}, "home: "},
		"long home":        {[]string{"home", `"/` + strings.Repeat("a", 70) + `"`}, "Unix sockets"},
		"programs":         {[]string{"programs", `"atoll-node"`}, "programs: "},
		"unknown member":   {[]string{"network.gatway", `"10.90.3.1"`}, `unknown field "gatway"`},
		"address":          {[]string{"apiServer.address", `"127.0.0.1"`}, "apiServer.address: "},
		"port":             {[]string{"apiServer.address", `"127.0.0.1:0"`}, "apiServer.address: "},
		"unnamed address":  {[]string{"apiServer.unnamedAddress", `":x"`}, "apiServer.unnamedAddress: "},
		"server name":      {[]string{"apiServer.tlsServerName", `"a b"`}, "apiServer.tlsServerName: "},
		"ca":               {[]string{"apiServer.ca", `"none"`}, "apiServer.ca: "},
		"loopback":         {[]string{"apiServer.advertised", `"127.0.0.1:6443"`}, "Kubernetes refuses"},
		"foreign label":    {[]string{"labels", `{"node-role.kubernetes.io/worker": ""}`}, "kubelet may not set"},
		"label value":      {[]string{"labels", `{"a": "b c"}`}, "labels: a="},
		"effect":           {[]string{"taints", `[{"key": "a", "effect": "Never"}]`}, "taints[0]: "},
		"pods elsewhere":   {[]string{"network.podCIDR", `"10.1.0.0/24"`}, "not within clusterCIDR"},
		"tiny podCIDR":     {[]string{"network.podCIDR", `"10.132.3.0/30"`}, "no room"},
		"host bits":        {[]string{"network.clusterCIDR", `"10.132.0.1/14"`}, "network.clusterCIDR: "},
		"dns elsewhere":    {[]string{"network.clusterDNS", `"10.0.0.10"`}, "network.clusterDNS: "},
		"long bridge":      {[]string{"network.bridge", `"atoll-0123456789"`}, "network.bridge: "},
		"address of net":   {[]string{"network.address", `"10.90.3.0/24"`}, "network.address: "},
		"gateway":          {[]string{"network.gateway", `"10.90.4.1"`}, "network.gateway: "},
		"gateway is node":  {[]string{"network.gateway", `"10.90.3.11"`}, "network.gateway: "},
		"bridge in pods":   {[]string{"network.address", `"10.132.9.2/24"`, "network.gateway", `""`}, "overlaps clusterCIDR"},
		"services in pods": {[]string{"network.serviceCIDR", `"10.132.0.0/16"`}, "overlaps clusterCIDR"},
		"cpu":              {[]string{"resources.cpu", `"10m"`}, "resources.cpu: "},
		"memory":           {[]string{"resources.memory", `"64Mi"`}, "resources.memory: "},
		"pods":             {[]string{"resources.pods", `1000`}, "resources.pods: "},
		"mirror":           {[]string{"images.mirror", `"registry"`}, "images.mirror: "},
		"preload":          {[]string{"images.preload", `["a.tar"]`}, "images.preload[0]: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig(configText(t, test.changes...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestAConfigFileThatOthersReadIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w1.json")
	if err := os.WriteFile(file, configText(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(file); err != nil {
		t.Errorf("mode 0600: %v", err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("mode 0644: error %v", err)
	}
}
