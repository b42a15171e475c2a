package interop

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The commands of a chart's probes succeed beside a service that runs with the chart's arguments. The CA and the router
// need no other service; all services have the same endpoints of health.
func TestTheProbesOfChartsSucceed(t *testing.T) {
	atoll := requireProgram(t, "ATOLL_BIN", "atoll")
	for _, c := range []struct{ chart, values, container string }{
		{regionalChart, "region: r1", "pki"}, {managementChart, everyManagementOption, "router"},
	} {
		t.Run(c.container, func(t *testing.T) {
			dir, free := t.TempDir(), freeAddresses(t, 2)
			local := func(args []string) []string {
				var out []string
				for _, arg := range args {
					name, value, _ := strings.Cut(arg, "=")
					switch {
					case name == "--ops":
						arg = name + "=" + free[0]
					case strings.HasPrefix(value, ":"):
						arg = name + "=" + free[1]
					case strings.HasPrefix(value, "/"):
						arg = name + "=" + filepath.Join(dir, value)
					}
					out = append(out, arg)
				}
				return out
			}
			var found bool
			objects := chartCase{"", c.chart, c.values}.render(t)
			eachContainer(objects, func(container map[string]any) {
				if container["name"] != c.container {
					return
				}
				found = true
				command, _, _ := unstructured.NestedStringSlice(container, "command")
				args, _, _ := unstructured.NestedStringSlice(container, "args")
				runWhileProbed(t, exec.Command(atoll, append(command[1:], local(args)...)...), func() {
					for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
						command, _, _ := unstructured.NestedStringSlice(container, probe, "exec", "command")
						eventually(t, probe, func() error {
							text, err := exec.Command(atoll, local(command[1:])...).CombinedOutput()
							if err != nil {
								return fmt.Errorf("%v: %w: %s", command, err, text)
							}
							return nil
						})
					}
				})
			})
			if !found {
				t.Fatalf("no container %s", c.container)
			}
		})
	}
}

// runWhileProbed runs a service during a function. The log of the service is shown when the test fails.
func runWhileProbed(t *testing.T, cmd *exec.Cmd, probe func()) {
	t.Helper()
	log := &bytes.Buffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log)
		}
	})
	probe()
}

// freeAddresses returns different addresses on loopback at which nothing listens.
func freeAddresses(t *testing.T, number int) (addresses []string) {
	t.Helper()
	for range number {
		address, err := freeAddress()
		for err == nil && slices.Contains(addresses, address) {
			address, err = freeAddress()
		}
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, address)
	}
	return addresses
}

// applyForeignKinds applies the kinds of testdata/crds and waits until they are served.
func (c *chartCluster) applyForeignKinds(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("testdata/crds/*.gz")
	if err != nil || len(files) != 3 {
		t.Fatalf("testdata/crds: %v %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		for _, crd := range documents(t, text) {
			c.apply(t, crd)
			c.awaitKind(t, crd)
		}
	}
}

// awaitKind waits until the API server serves a kind and describes it to clients.
func (c *chartCluster) awaitKind(t *testing.T, crd *unstructured.Unstructured) {
	t.Helper()
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version := versions[0].(map[string]any)["name"].(string)
	eventually(t, kind, func() error {
		c.mapper.Reset()
		mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind}, version)
		if err == nil {
			_, err = c.dynamic.Resource(mapping.Resource).List(t.Context(), metav1.ListOptions{Limit: 1})
		}
		return err
	})
}
