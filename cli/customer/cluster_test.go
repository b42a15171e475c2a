package customer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

func TestNodePoolFlag(t *testing.T) {
	for text, want := range map[string]string{
		"name=workers,replicas=2,instance-type=m6a.xlarge": `workers {"nodePool":{"platform":{"aws":{"instanceType":"m6a.xlarge"},"type":"AWS"}},"replicas":2}`,
		"name=w":                              `w {}`,
		"name=w,provider=external,replicas=3": `w {"provider":"external","replicas":3}`,
		"name=w,provider=a,provider=b":        `provider is given twice; give it once`,
		"name=w,replicas=0":                   `w {"replicas":0}`,
		"name=w,label=a=b,label=c=,taint=k=v:NoSchedule,taint=g:NoExecute": `w {"labels":{"a":"b","c":""},` +
			`"taints":[{"effect":"NoSchedule","key":"k","value":"v"},{"effect":"NoExecute","key":"g"}]}`,
		"name=w,auto-repair=false,display-name=W W": `w {"autoRepair":false,"displayName":"W W"}`,
		"":                     `"": give KEY=VALUE with one of name, replicas`,
		"replicas=2":           `has no name`,
		"name=w,replicas=two":  `replicas=two: give a number`,
		"name=w,name=v":        `name is given twice; give it once`,
		"name=w,size=2":        `"size=2": give KEY=VALUE`,
		"name=w,taint=k":       `taint "k": give KEY=VALUE:EFFECT`,
		"name=w,label=k":       `label=k: give label=KEY=VALUE`,
		"name=w,auto-repair=2": `auto-repair=2: give true or false`,
	} {
		p, err := parsePool(text)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
			continue
		}
		spec, _ := json.Marshal(p.spec)
		if got := p.name + " " + string(spec); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	var f poolFlag
	if f.Set("name=a") != nil || f.Set("name=b") != nil || f.Set("name=a") == nil || f.String() != "a,b" {
		t.Errorf("twice the same name: %s", &f)
	}
}

// A flag yields a spec that the API accepts, or an error.
func FuzzNodePoolFlag(f *testing.F) {
	f.Add("name=workers,replicas=2,instance-type=m6a.xlarge")
	f.Add("name=w,label=a=b,taint=k=v:NoSchedule,auto-repair=1")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePool(text)
		if err != nil {
			return
		}
		var spec platform.NodePoolSpec
		if err := decodeStrict(p.spec, &spec); err != nil || p.name == "" {
			t.Errorf("%q: name %q, %v", text, p.name, err)
		}
	})
}

func FuzzClusterFile(f *testing.F) {
	example, err := os.ReadFile("../../examples/cluster.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add([]byte("name: a\nspec: {tags: {k: v}}\n---\nkind: NodePool\nname: w\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseRequest("cluster.yaml", data)
		if err != nil {
			return
		}
		if _, err := json.Marshal(o.spec); err != nil {
			t.Errorf("%q: %v", data, err)
		}
	})
}

func TestFlagsOverrideTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(`# a cluster
kind: Cluster
name: from-file
target_project_id: p1
spec:
  tags: {env: test, team: web}
  hostedCluster: {networking: {serviceNetwork: [{cidr: 172.30.0.0/16}]}}
---
kind: NodePool
name: workers
spec: {replicas: 1, nodePool: {platform: {aws: {instanceType: m6a.large}}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := createFlags{file: file, release: "1.36.3", hibernated: true, protected: true, tags: map[string]string{
		"env": "prod"}, selector: map[string]string{"zone": "a"}}
	for _, p := range []string{"name=workers,replicas=3", "name=more"} {
		if err := f.pools.Set(p); err != nil {
			t.Fatal(err)
		}
	}
	o, err := buildRequest(&terminal.Session{}, f, []string{"by-flag"})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(map[string]any{"name": o.name, "project": o.project, "spec": o.spec,
		"workers": o.pools[0].spec, "pools": len(o.pools)})
	want := `{"name":"by-flag","pools":2,"project":"p1","spec":{"deleteProtection":true,"hibernated":true,
		"hostedCluster":{"networking":{"serviceNetwork":[{"cidr":"172.30.0.0/16"}]},"release":{"image":"atoll.dev/release:1.36.3"}},
		"placement":{"selector":{"zone":"a"}},"tags":{"env":"prod","team":"web"}},
		"workers":{"nodePool":{"platform":{"aws":{"instanceType":"m6a.large"}}},"replicas":3}}`
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s", cmp.Diff(b, a))
	}
}

// A generated key is put into the region's kubeconfig, which is merged into an existing kubeconfig;
// its other entries stay.
func TestKubeconfigs(t *testing.T) {
	const answer = `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"x","cluster":{"server":"https://127.0.0.1:6443","tls-server-name":"hc-1.hosted","certificate-authority-data":"Q0E="}}],
		"users":[{"name":"u","user":{"client-certificate-data":"Q0VSVA=="}}],"contexts":[{"name":"c","context":{"cluster":"x","user":"u"}}]}`
	config, err := completeKubeconfig([]byte(answer), []byte("KEY"), "demo")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "new", "config")
	other, err := completeKubeconfig([]byte(answer), []byte("KEY2"), "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{mergeKubeconfig(file, other, "other"), mergeKubeconfig(file, config, "demo"),
		mergeKubeconfig(file, config, "demo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if len(all.Contexts) != 2 || all.CurrentContext != "demo" || all.Clusters["demo"].TLSServerName != "hc-1.hosted" ||
		string(all.AuthInfos["demo"].ClientKeyData) != "KEY" ||
		string(all.AuthInfos["other"].ClientKeyData) != "KEY2" ||
		string(all.AuthInfos["demo"].ClientCertificateData) != "CERT" {
		t.Errorf("merged into %+v", all)
	}
	// Foreign entries of the same name stay.
	for _, theirs := range []*clientcmdapi.Config{
		{Clusters: map[string]*clientcmdapi.Cluster{"demo": {Server: "https://prod"}}},
		{AuthInfos: map[string]*clientcmdapi.AuthInfo{"demo": {Token: "t"}}},
		{Contexts: map[string]*clientcmdapi.Context{"demo": {Cluster: "prod", AuthInfo: "me"}}},
	} {
		taken := filepath.Join(t.TempDir(), "config")
		if err := clientcmd.WriteToFile(*theirs, taken); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(taken)
		if err != nil {
			t.Fatal(err)
		}
		if err := mergeKubeconfig(taken, config, "demo"); err == nil || !strings.Contains(err.Error(), "--out") {
			t.Errorf("the name is taken: %v", err)
		}
		if after, err := os.ReadFile(taken); err != nil || string(after) != string(before) {
			t.Errorf("it became %s, %v", after, err)
		}
	}
	for _, broken := range []string{``, `{`, `{"apiVersion":"v1","kind":"Config"}`,
		strings.Replace(answer, `"client-certificate-data":"Q0VSVA=="`, "", 1)} {
		if _, err := completeKubeconfig([]byte(broken), []byte("KEY"), "demo"); err == nil ||
			!strings.Contains(err.Error(), "the region's kubeconfig") {
			t.Errorf("%s: %v", broken, err)
		}
	}
}

// WritePrivate writes through a link and into a pipe. It replaces a regular file by one that only
// its owner may read, and leaves no temporary file.
func TestWritePrivateReplacesAFileForItsOwner(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, []byte("a longer text"), 0o644), os.Symlink(file, link),
		syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	listens, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that neither end waits for the other
	if err != nil {
		t.Fatal(err)
	}
	defer listens.Close()
	if err := errors.Join(terminal.WritePrivate(link, []byte("secret")), terminal.WritePrivate(
		pipe, []byte("secret"))); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("the pipe became %v, %v", info, err)
	}
	received := make([]byte, len("secret"))
	if _, err := io.ReadFull(listens, received); err != nil || string(received) != "secret" {
		t.Errorf("the pipe delivered %q, %v", received, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link became %v, %v", info, err)
	}
	data, err := os.ReadFile(file)
	if info, bad := os.Lstat(file); err != nil || bad != nil || string(data) != "secret" || info.Mode() != 0o600 {
		t.Errorf("the file: %q, %v, %v", data, info, errors.Join(err, bad))
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 3 {
		t.Errorf("there are %v, %v", all, err)
	}
}

// Ctrl-C ends a question that has no answer yet.
func TestAQuestionCanBeCancelled(t *testing.T) {
	in, user := io.Pipe()
	t.Cleanup(func() { _ = user.Close() })
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := readLine(ctx, in); !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}
	for _, text := range []string{"demo\nmore", "demo"} {
		if line, err := readLine(t.Context(), strings.NewReader(text)); err != nil ||
			strings.TrimSpace(line) != "demo" {
			t.Errorf("%q: %q, %v", text, line, err)
		}
	}
}
