package local

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
)

// Credentials is the region's first key pair, for the person who started it.
type Credentials struct {
	AccessKeyID     string `json:"access_key_id"`
	SecretAccessKey string `json:"secret_access_key"`
	Account         string `json:"account"`
	Principal       string `json:"principal"`
}

// Credentials reads the first key pair.
func (h Home) Credentials() (Credentials, error) {
	var c Credentials
	data, err := os.ReadFile(h.Path("credentials.json"))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("credentials: %w; `atoll up` makes them", err)
	}
	return c, nil
}

// Endpoint returns the URL of the Platform API and the name of the region.
func (h Home) Endpoint() (endpoint, region string, err error) {
	st, err := h.State()
	if err != nil {
		return "", "", err
	}
	return newTopology(h, st, Binaries{}).url("platform"), st.Region, nil
}

// ensureAdminKey makes the first key pair. It saves the pair in the home before it adds it to the
// region, so that an interruption never leaves a key whose secret is lost.
func (t topology) ensureAdminKey(ctx context.Context) error {
	file := t.home.Path("credentials.json")
	if !exists(file) {
		out, err := t.runAtoll(ctx, "key", "new", "-o", "json")
		if err != nil {
			return err
		}
		if err := atomicfile.Write(file, out, 0o600); err != nil {
			return err
		}
	}
	_, err := t.runAtoll(ctx, "key", "import", file, "--home", t.home.Dir)
	return err
}

// prepareAgent prepares the start of the agent of a local management cluster: it registers the
// cluster with the region and creates the agent's account in the cluster. Only `atoll mc
// bootstrap`, a tool for persons, reads the administrator's kubeconfig; no process of the region
// does.
func (t topology) prepareAgent(ctx context.Context, mc cluster.ManagementCluster, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "store"), 0o700); err != nil {
		return err
	}
	if err := t.register(ctx, mc); err != nil {
		return fmt.Errorf("registering %s: %w", mc, err)
	}
	kubeconfig := filepath.Join(dir, "agent.kubeconfig")
	if hasValidToken(kubeconfig) {
		return nil
	}
	_, err := t.runAtoll(ctx, "mc", "bootstrap", "--kubeconfig", t.home.AdminKubeconfig(mc), "--out", kubeconfig)
	return err
}

// ownLabels returns the labels that a management cluster of this machine has without a declaration.
func ownLabels(name string) map[string]string {
	return map[string]string{"cluster_type": "management", "cluster_id": name}
}

// register registers the cluster and its limits with the region's API. For a registered cluster it
// updates the limits: a new program runs other versions, the machine may have more memory. It
// sets the capacity of the other clusters of this machine, whose shares of the machine have become smaller.
func (t topology) register(ctx context.Context, mc cluster.ManagementCluster) error {
	st, err := t.home.State() // read again: the region may have more clusters than t
	if err != nil {
		return err
	}
	api, err := t.home.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	memory, err := machineMemory()
	if err != nil {
		return err
	}
	limits := st.limitsOf(mc, memory, t.bin)
	_, err = api.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{
		Name: string(mc), Labels: ownLabels(string(mc)), Capacity: limits.Capacity, Versions: limits.Versions,
	})
	if remote.StatusOf(err) == 409 {
		_, err = api.UpdateManagementCluster(ctx, string(mc), limits)
	}
	if err != nil || len(st.Clusters) < 2 {
		return err
	}
	registered, err := api.ManagementClusters(ctx)
	if err != nil {
		return err
	}
	for _, other := range registered {
		name := cluster.ManagementCluster(other.Name)
		capacity := st.limitsOf(name, memory, t.bin).Capacity
		if name == mc || !slices.Contains(st.Clusters, name) || maps.Equal(other.Capacity, capacity) {
			continue
		}
		_, err := api.UpdateManagementCluster(ctx, other.Name, platform.ManagementClusterUpdate{Capacity: capacity})
		if err != nil && remote.StatusOf(err) != 404 {
			return err
		}
	}
	return nil
}

// Client returns a client of the region's API with the first key pair.
func (h Home) Client() (*client.Client, error) {
	cred, err := h.Credentials()
	if err != nil {
		return nil, err
	}
	endpoint, region, err := h.Endpoint()
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{
		Endpoint: endpoint, CAFile: h.CAFile(),
		Credentials: client.Credentials{AccessKeyID: cred.AccessKeyID, SecretAccessKey: cred.SecretAccessKey,
			Region: region},
	})
}

// JoinAddresses are the addresses at which an agent on this machine reaches the region: the
// broker as host:port, the signing service as a URL.
func (h Home) JoinAddresses() (broker, signing string, err error) {
	st, err := h.State()
	if err != nil {
		return "", "", err
	}
	t := newTopology(h, st, Binaries{})
	return t.address("mqtt"), t.url("pki"), nil
}

// MaestroAddresses are the addresses of Maestro: REST as a URL, gRPC as host:port.
func (h Home) MaestroAddresses() (http, grpc string, err error) {
	st, err := h.State()
	if err != nil {
		return "", "", err
	}
	t := newTopology(h, st, Binaries{})
	return t.url("maestro-http"), t.address("maestro-grpc"), nil
}

// RestartAgent stops the agent of a local management cluster; the supervisor starts it again, with
// a join token when it needs one. It returns false when this home has no such agent.
func (h Home) RestartAgent(mc cluster.ManagementCluster) (bool, error) {
	st, err := h.State()
	if err != nil || !slices.Contains(st.Clusters, mc) {
		return false, err
	}
	if r, ok := h.readRecord(agentName(mc)); ok && r.isAlive() {
		return true, r.signal(syscall.SIGTERM)
	}
	return true, nil
}

// RemoveCluster stops the processes of a local management cluster that is no
// longer registered. Its files stay until `down --purge`.
func (h Home) RemoveCluster(name cluster.ManagementCluster) error {
	unlock, err := h.lock("state.lock")
	if err != nil {
		return err
	}
	defer unlock()
	st, err := h.State()
	if err != nil {
		return err
	}
	var remaining []cluster.ManagementCluster
	for _, c := range st.Clusters {
		if c != name {
			remaining = append(remaining, c)
		}
	}
	if len(remaining) == len(st.Clusters) {
		return nil
	}
	st.Clusters = remaining
	for port := range st.Ports {
		if strings.HasPrefix(port, string(name+"-")) {
			delete(st.Ports, port)
		}
	}
	if err := h.saveState(st); err != nil {
		return err
	}
	return h.reloadSupervisor()
}
