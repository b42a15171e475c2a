package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/test/localtest"
)

// awaitReady waits until a customer's cluster is ready.
func awaitReady(t *testing.T, api *client.Client, id client.ClusterID) {
	t.Helper()
	localtest.Eventually(t, 5*time.Minute, func() error {
		c, err := api.Cluster(t.Context(), id)
		if err == nil && c.Status.Phase != platform.ClusterPhaseReady {
			err = fmt.Errorf("%+v", c.Status)
		}
		return err
	})
}

// runKubectl runs kubectl with a customer's kubeconfig and returns its output.
func runKubectl(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, file, []byte(kubeconfig))
	return runKubectlWithFile(t, file, time.Minute, args...)
}

// runKubectlWithFile runs kubectl with the kubeconfig of a file and returns its output. Kubectl waits at most timeout
// for the answer to a request.
func runKubectlWithFile(t *testing.T, kubeconfig string, timeout time.Duration, args ...string) (string, error) {
	_, kubectl := localtest.Bin(t)
	out, err := exec.Command(kubectl, append([]string{"--kubeconfig", kubeconfig, "--request-timeout", timeout.String()},
		args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}
