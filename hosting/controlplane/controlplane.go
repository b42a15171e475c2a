// Package controlplane describes control planes as hosting orders and observes
// them, whatever runs them: processes of this machine, pods, or a test's memory.
//
// Hosting decides what should run and hands a Spec to a runtime; the runtime
// reports an Observation. The packages process and memory are runtimes, and
// runtimetest is the test suite that both pass. The interfaces are declared
// where they are used: hosting.Runtime, nodepool.Planes and credential.Planes.
//
// Only packages below hosting import it.
package controlplane

import (
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/cluster"
)

// ID identifies a control plane: namespace and name of its HostedCluster.
type ID struct{ Namespace, Name string }

func (id ID) String() string { return id.Namespace + "/" + id.Name }

// Version is a version of Kubernetes without a leading "v", as in 1.36.3. It
// names a release that a runtime can run.
type Version string

// Spec is a control plane as hosting orders it.
type Spec struct {
	Name        string   // of cluster, context and user in the administrator's kubeconfig
	Release     Version  // one of the releases that the runtime offers
	ServerNames []string // DNS names in the serving certificate; customers use the first
	// ServiceCIDR is the network of Services. The first start fixes it; a later
	// Ensure with another value keeps the first.
	ServiceCIDR string
	// Data names the restored data with which the plane runs: the ID of a RestoreOrder whose data was prepared; "" for
	// a plane that was never restored. Another value than that of the last start replaces the plane's data.
	Data string
	// EmulatedVersion is the minor version, as 1.35, whose APIs and features the plane offers, and in whose form it
	// stores objects; "" is that of Release. So the program of that version can read the data.
	EmulatedVersion string
	// Copy names the copy of the data that the runtime makes before the first start with another release, and keeps
	// while the orders name it; "" for none. It is used as restored data: by Data.
	Copy string
	// Rotations are the rotations of the plane's keys. Other values than those of the last start change the keys while
	// the plane is stopped.
	Rotations Rotations

	Size  cluster.Size // size class as ordered; see cluster.EffectiveSize. A change holds at once, without another start
	Nodes int          // ordered for all node pools: the size follows them
}

// Equal reports whether a running control plane need not be replaced to follow
// the other spec.
func (s Spec) Equal(other Spec) bool {
	return s.Release == other.Release && s.Data == other.Data && s.EmulatedVersion == other.EmulatedVersion &&
		s.Rotations == other.Rotations && slices.Equal(s.ServerNames, other.ServerNames)
}

// State is the state of a control plane. Metrics show it as a label.
type State string

// States of a control plane.
const (
	Down     State = "down"     // stopped, and not wanted
	Starting State = "starting" // runs, and was not ready yet
	Ready    State = "ready"
	Unready  State = "unready" // was ready, and its API server now reports failing parts or does not answer
	Stopping State = "stopping"
	Failing  State = "failing" // does not run; the runtime starts it again after a back-off
)

// States are all states, in the order in which a control plane passes through
// them.
var States = []State{Down, Starting, Ready, Unready, Stopping, Failing}

// Observation is the state of one control plane as its runtime has observed it. The
// zero value, with State Down, stands for a control plane that never existed.
type Observation struct {
	State   State
	Running bool // something runs: it starts, serves, fails its health checks, or is being stopped

	LastStart LastStart
	// HasData reports whether the runtime holds data of the control plane: etcd's,
	// keys and certificates. Only a stopped control plane's value is meaningful.
	HasData bool

	// Backend is HOST:PORT where the router reaches it; "" before the first start.
	Backend    string
	ReadySince time.Time // zero when it does not serve
	Failure    *Failure  // the last failure; nil once it served again
	// Unconfirmed: it ran already when the runtime was opened, and the runtime has
	// not finished its first health check. An earlier status stays valid.
	Unconfirmed bool
	// Walls are the walls around a control plane that serves, by name; see docs/decisions/110.
	Walls []string
	// Size is the plane's size class, and what it should be.
	Size SizeState
	// Store is the state of etcd, as far as it matters to the customer.
	Store StoreState
	// FailingParts are parts of the API server that fail their health check, by the
	// names of /readyz; APIServer alone when the API server does not answer.
	FailingParts []string
}

// SizeState is the size class of a control plane, as its runtime holds it. A runtime keeps it over its own restarts.
type SizeState struct {
	Size   cluster.Size // whose limits hold; "" for a plane that was never given one
	Wanted cluster.Size // that its use needs; "" while nothing is known of its use
	Limits Limits
	// IsEnforced reports whether the kernel holds the plane to its limits. Otherwise only the plane's collector of
	// garbage aims at the memory.
	IsEnforced bool
	// IsRefused reports whether the kernel has refused the limits. The runtime tries again.
	IsRefused   bool
	OutOfMemory time.Time // when the plane was last ended for want of memory; zero: never
}

// Limits bound one control plane.
type Limits struct {
	Memory    int64 // bytes; the kernel ends a plane that needs more
	Processes int   // processes and threads
	CPUWeight int   // share of the processors when all are busy; 100 is that of other programs
}

// StoreState is the state of a control plane's etcd. The zero value is that of a store that accepts writes, or that
// cannot be asked.
type StoreState struct {
	Full    bool  // it refuses writes and answers reads
	Corrupt bool  // it has found damage in its data
	Quota   int64 // bytes at which it is full; 0 when it is not
}

// LastStart describes the last start of a control plane. A runtime keeps it over its
// own restarts.
type LastStart struct {
	Release     Version // "" before the first start
	ServerNames []string
	ServiceCIDR string
	WasReady    bool     // has been ready once in its life
	Data        string   // as in Spec
	PastData    []string // earlier values of Data, the last first

	// Served is the release with which the plane was ready last: the version of record. It differs from Release while
	// an upgrade is not ready yet. "" before the plane was ready once.
	Served          Version
	EmulatedVersion string // as in Spec
	Copy            string // the copy of the data that exists, as Spec.Copy names it; "" for none
	Rotations       Rotations
}

// HasRestored reports whether a restore has replaced the plane's data, now or earlier. Such a restore never runs again.
func (l LastStart) HasRestored(id string) bool {
	return l.Data == id || slices.Contains(l.PastData, id)
}

// Restores returns the orders of all restores that have replaced the plane's data, the last first.
func (l LastStart) Restores() []string {
	return slices.DeleteFunc(append([]string{l.Data}, l.PastData...), func(id string) bool { return id == "" })
}

// APIServer is the failing part of an API server that does not answer.
const APIServer = "kube-apiserver"

// ErrNotServing is the error of a request to a control plane that does not
// serve: it is stopped, starts, or does not exist.
var ErrNotServing = errors.New("the control plane does not serve")

// Admin is the administrator's way into a control plane that serves.
type Admin struct {
	Kubeconfig []byte  // with all rights, and the address at which hosting itself reaches it
	Version    Version // that the control plane reports
	ServerName string  // by which customers reach it through the router
}

// RESTConfig is the kubeconfig for clients of client-go, without a client-side
// rate limit: the API server's own fairness is the limit.
func (a Admin) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(a.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of a control plane: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{} // the log would have them, and a customer's webhook chooses their text
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return redirectRefuser{next} })
	return config, nil
}

// redirectRefuser refuses redirections: a control plane chooses their target, and hosting may reach more than it.
type redirectRefuser struct{ next http.RoundTripper }

func (r redirectRefuser) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil && response.StatusCode >= 300 && response.StatusCode < 400 && response.Header.Get("Location") != "" {
		response.Body.Close()
		return nil, errors.New("the control plane redirects the request, which no API server does")
	}
	return response, err
}

// CertificateRequest describes a client certificate.
type CertificateRequest struct {
	PublicKey    crypto.PublicKey
	CommonName   string // the user's name
	Organization string // the user's only group
	Expires      time.Time
}

// Certificate is a signed client certificate.
type Certificate struct {
	PEM []byte
	// CAPEM has the authority that signed it, and between the steps of a rotation also those before. Each signs the
	// serving certificate.
	CAPEM []byte
}

// Failure is why a control plane does not run as ordered. Conditions of the
// HostedCluster show Reason and Message.
type Failure struct {
	Reason  FailureReason
	Message string
	Count   int     // consecutive failures of one release, without a minute of readiness between them
	Release Version // that failed; "" when none was started
}

// FailureReason is the reason of a condition.
type FailureReason string

// Reasons of failures. They are part of the wire contract: conditions show them.
const (
	PortTaken     = FailureReason(cluster.ReasonPortTaken)
	DiskFull      = FailureReason(cluster.ReasonDiskFull)
	BinaryMissing = FailureReason(cluster.ReasonBinaryMissing)
	DataMissing   = FailureReason(cluster.ReasonDataMissing)
	MovedAway     = FailureReason(cluster.ReasonMovedAway)
	PlaneFailed   = FailureReason(cluster.ReasonPlaneFailed)
	PlaneHangs    = FailureReason(cluster.ReasonPlaneHangs)
	OutOfMemory   = FailureReason(cluster.ReasonOutOfMemory)
)

// Error makes a Failure an error: Runtime.Ensure returns it.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Reason, f.Message) }
