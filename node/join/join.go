// Package join makes a customer's machine a node of a node pool with the provider external, and later takes it out of
// the pool (`atoll node join`, `atoll node leave`).
//
// The machine makes its key, sends a certificate request with the bootstrap token of its Invitation, and reads from
// its own Node object which networks and addresses hosting has chosen. It dials the router's address only. The record
// in its home has each completed step, so a join that was killed continues with the next call. The node then runs as
// any other (node/supervisor), and Follow returns when the cluster has removed it.
//
// It is a tool: it imports no service. cli runs it.
package join

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/node"
)

// Options of Join; Home and Programs are required.
type Options struct {
	Home       string           // absolute, at most 64 bytes: everything that the machine keeps
	Programs   string           // path of atoll-node
	Invitation *node.Invitation // nil: an earlier join continues
	Resources  node.Resources   // size of the node
	Images     []string         // archives that the node imports
	// Logf prints one line of progress; nil: no progress is printed.
	Logf func(format string, args ...any)
}

const (
	pollEvery   = 500 * time.Millisecond // between two reads of the certificate request, or of a draining Node
	callTimeout = 30 * time.Second       // of one call to the cluster
)

func certificateRequests() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
}

func nodes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

// Join makes this machine a node of the pool of its invitation, and returns the node's config, with which
// supervisor.Run runs it. It may be repeated after every end, also that by a kill: with the same invitation, or none,
// it continues. The error of a refused machine has the cluster's reason.
func Join(ctx context.Context, o Options) (node.Config, error) {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return node.Config{}, fmt.Errorf("the home of the node: %w", err)
	}
	unlock, err := node.Lock(o.Home)
	if err != nil {
		return node.Config{}, err
	}
	defer unlock()
	r, err := loadOrCreateRecord(o)
	if err != nil {
		return node.Config{}, err
	}
	if !hasCertificate(o.Home) {
		if err := r.obtainCertificate(ctx, o); err != nil {
			return node.Config{}, err
		}
	}
	if _, err := os.Stat(ConfigFile(o.Home)); err != nil || r.UID == "" {
		if err := r.makeConfig(ctx, o); err != nil {
			return node.Config{}, err
		}
		o.Logf("this machine is node %s", r.Invitation.Node())
	}
	return node.ReadConfig(ConfigFile(o.Home))
}

// loadOrCreateRecord returns the record of the join that the home has. Without one it makes the machine's key and
// stores a new record. It refuses a join that the cluster has ended, and another token than that of the record.
func loadOrCreateRecord(o Options) (*record, error) {
	r, err := readRecord(o.Home)
	switch {
	case err != nil:
		return nil, err
	case r == nil && o.Invitation == nil:
		return nil, fmt.Errorf("%s has no join to continue: give the token of `atoll nodepool join-token` with --token-file",
			o.Home)
	case r == nil:
		if r, err = newRecord(*o.Invitation); err != nil {
			return nil, err
		}
		return r, r.write(o.Home)
	case r.Removed != "":
		return nil, fmt.Errorf("%s; remove what is left with: atoll node leave --home %s", r.Removed, o.Home)
	case o.Invitation != nil && o.Invitation.Token != r.Invitation.Token:
		return nil, fmt.Errorf("this machine is node %s already, with another token; to leave that cluster: "+
			"atoll node leave --home %s", r.Invitation.Node(), o.Home)
	}
	return r, nil
}

// clientConfig returns the address and CA of the cluster's API server, without credentials.
func (r *record) clientConfig() *rest.Config {
	i := r.Invitation
	return &rest.Config{Host: "https://" + i.Address, Timeout: callTimeout, QPS: -1, UserAgent: "atoll-node-join",
		TLSClientConfig: rest.TLSClientConfig{ServerName: i.ServerName, CAData: []byte(i.CA)}}
}

// tokenClient returns a client with the token of the invitation.
func (r *record) tokenClient() (dynamic.Interface, error) {
	config := r.clientConfig()
	config.BearerToken = r.Invitation.Token
	return dynamic.NewForConfig(config)
}

// certificateClient returns a client with kubelet's certificate, which it reads again when kubelet has renewed it.
func (r *record) certificateClient(home string) (dynamic.Interface, error) {
	config := r.clientConfig()
	config.CertFile, config.KeyFile = certificateFile(home), certificateFile(home)
	return dynamic.NewForConfig(config)
}

// obtainCertificate requests the machine's certificate, waits for it and stores it. When the cluster refuses the
// request or the token, obtainCertificate deletes the record: the next join starts with a new key and token.
func (r *record) obtainCertificate(ctx context.Context, o Options) error {
	client, err := r.tokenClient()
	if err != nil {
		return err
	}
	name, csr, err := r.certificateRequest()
	if err != nil {
		return err
	}
	api := client.Resource(certificateRequests())
	_, err = api.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"name": name, "labels": map[string]any{node.JoinLabel: "true"}},
		"spec": map[string]any{"request": base64.StdEncoding.EncodeToString(csr),
			"signerName": "kubernetes.io/kube-apiserver-client-kubelet",
			"usages":     []any{"digital signature", "client auth"}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return r.discardIfRefused("requesting the machine's certificate", o.Home, err)
	}
	o.Logf("waiting for %s to admit this machine as node %s", r.Invitation.Address, r.Invitation.Node())
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		object, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil && (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
			return r.discardIfRefused("reading the answer to the machine's request", o.Home, err)
		}
		if err == nil { // other errors are taken for a short outage, and the next tick reads again
			certificate, refused := certificateOf(object)
			if refused != nil {
				return errors.Join(fmt.Errorf("the cluster refuses this machine as node %s: %w", r.Invitation.Node(), refused),
					os.Remove(recordFile(o.Home)))
			}
			if certificate != nil {
				return r.storeCertificate(o.Home, certificate)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the cluster has not answered this machine's request yet; repeat the command: %w",
				context.Cause(ctx))
		}
	}
}

// discardIfRefused returns the error of a call that was made with the token, with the next step. When the cluster has
// refused the token, it deletes the record as well: this token will never be accepted again.
func (r *record) discardIfRefused(what, home string, err error) error {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return errors.Join(fmt.Errorf("%s: the token is wrong, was used, or has expired; make another one with "+
			"`atoll nodepool join-token %s`: %w", what, r.Invitation.Pool, err), os.Remove(recordFile(home)))
	}
	return fmt.Errorf("%s from %s: %w", what, r.Invitation.Address, err)
}

// certificateOf returns the certificate of a request, or why it was refused, or neither.
func certificateOf(object *unstructured.Unstructured) (certificate []byte, refused error) {
	var status struct {
		Status struct {
			Certificate []byte `json:"certificate"`
			Conditions  []struct{ Type, Message string }
		} `json:"status"`
	}
	data, err := object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		return nil, err
	}
	for _, c := range status.Status.Conditions {
		if c.Type == "Denied" || c.Type == "Failed" {
			return nil, errors.New(c.Message)
		}
	}
	return status.Status.Certificate, nil
}

// makeConfig reads the machine's networks and addresses from its Node's PlaceAnnotation, and stores the node's config
// and the UID of the Node.
func (r *record) makeConfig(ctx context.Context, o Options) error {
	client, err := r.certificateClient(o.Home)
	if err != nil {
		return err
	}
	name := r.Invitation.Node()
	object, err := client.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
	if isNotFound(err, name) {
		return fmt.Errorf("node %s was removed before this machine had joined; run atoll node leave --home %s, and join "+
			"with another token", name, o.Home)
	}
	if err != nil {
		return fmt.Errorf("reading node %s from %s: %w", name, r.Invitation.Address, err)
	}
	var place node.Place
	if err := json.Unmarshal([]byte(object.GetAnnotations()[node.PlaceAnnotation]), &place); err != nil {
		return fmt.Errorf("node %s has no place in its cluster's networks: %w", name, err)
	}
	config := node.Config{
		Name: name, ProviderID: place.ProviderID, Home: o.Home, Programs: o.Programs,
		APIServer: node.APIServer{Address: r.Invitation.Address, ServerName: r.Invitation.ServerName,
			UnnamedAddress: r.Invitation.Address, UnnamedPlane: r.Invitation.ServerName, CA: cmp.Or(place.CA, r.Invitation.CA),
			Advertised: place.Advertised},
		Network: node.Network{ClusterCIDR: place.ClusterCIDR, ServiceCIDR: place.ServiceCIDR, ClusterDNS: place.ClusterDNS,
			PodCIDR: place.PodCIDR, Bridge: node.BridgeName(o.Home), Address: place.Address},
		Resources: o.Resources, Images: node.Images{Preload: o.Images}, Konnectivity: true,
	}
	if err := config.Validate(); err != nil {
		return fmt.Errorf("the config of node %s: %w", name, err)
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(ConfigFile(o.Home), data, 0o600); err != nil {
		return err
	}
	r.UID = object.GetUID()
	return r.write(o.Home)
}

// MachineSize returns the size of this machine as a node: all processors, and the memory less 512 MiB for the machine's
// own processes, but at least half of it.
func MachineSize() (node.Resources, error) {
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil || len(cpus) == 0 {
		return node.Resources{}, errors.New("/sys lists no processors")
	}
	memory, err := memoryOfMachine()
	if err != nil {
		return node.Resources{}, err
	}
	const forMachine = 512 << 20
	return node.Resources{CPU: *resource.NewQuantity(int64(len(cpus)), resource.DecimalSI),
		Memory: *resource.NewQuantity(max(memory-forMachine, memory/2), resource.BinarySI), Pods: maxPods}, nil
}

// maxPods is the most pods that a joined node runs; hosting's own nodes have the same limit.
const maxPods = 250
