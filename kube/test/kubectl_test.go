package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func (p *plane) kubectl(t *testing.T) {
	link := filepath.Join(t.TempDir(), "kubectl")
	if err := os.Symlink(binary(t), link); err != nil {
		t.Fatal(err)
	}
	kubeconfig := "--kubeconfig=" + filepath.Join(p.dir, "admin.kubeconfig")
	for _, command := range [][]string{{link}, {binary(t), "kubectl"}} {
		for args, want := range map[string]string{
			"get namespace default -o name": "namespace/default",
			"config current-context":        "shared",
			"version":                       "Server Version: v1.36.3",
			"auth can-i create pods":        "yes",
		} {
			args := append(append(command[1:len(command):len(command)], kubeconfig), strings.Fields(args)...)
			out, err := exec.Command(command[0], args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%q: %v, %q does not contain %q", args, err, out, want)
			}
		}
	}
}

func TestVersionIsUpstreams(t *testing.T) {
	if code, out := run(t, "version"); code != 0 || out != "v1.36.3" {
		t.Errorf("exit code %d, %q", code, out)
	}
}

// run runs atoll-kube to its end and returns its exit code and the last line of its output.
func run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	out, err := exec.Command(binary(t), args...).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), lines[len(lines)-1]
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, lines[len(lines)-1]
}

func resourceOf(quantity string) resource.Quantity { return resource.MustParse(quantity) }
