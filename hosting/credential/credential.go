// Package credential signs client certificates for hosted clusters, beside
// their planes: it follows the Credentials of a management cluster, and for
// each puts a certificate in its status and a ClusterRoleBinding in the plane.
//
// A certificate uses only the key of its request. Its user and its only group are of this
// Credential alone; the binding grants the ClusterRole of the Credential's role to the user.
// Kubernetes has no list of revoked certificates; revocation deletes the binding, and takes
// the user and the group out of all other bindings of the plane, so that the certificate has
// no more rights than any authenticated user. The key of the plane's authority stays in the
// plane's data directory.
//
// Signing needs no running plane, a binding does: the controller wakes a sleeping plane
// to create a binding, and to delete the binding of a valid certificate. It wakes no
// plane for an expired binding, which grants nothing, and removes it with the next
// Credential of the plane.
//
// Only cli imports it; what it needs of hosting is the interface Planes.
package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// Planes are the control planes of this management cluster.
type Planes interface {
	// Client returns the administrator's way into a plane that serves, and
	// controlplane.ErrNotServing of any other. It wakes none.
	Client(cluster controlplane.ID) (controlplane.Admin, error)
	// Wake returns when the plane serves, or why it cannot.
	Wake(ctx context.Context, cluster controlplane.ID) error
	// Sign signs a client certificate with the plane's authority. The plane must
	// have been ready once; it need not run.
	Sign(cluster controlplane.ID, request controlplane.CertificateRequest) (controlplane.Certificate, error)
}

// Options of Run; Client and Planes are required.
type Options struct {
	Client  dynamic.Interface // of the management cluster
	Planes  Planes
	Workers int // default 32
	// Longest is the longest lifetime of a credential; default 24 h. Credentials that live longer are
	// refused, whatever the region ordered.
	Longest time.Duration
	Log     *slog.Logger // default: none
	Observe func(key loop.Key, took time.Duration, err error)
}

const (
	finalizer = "hosting.atoll.dev/credential"

	// wakeLimit bounds the wait of one call for a plane; the next call waits again.
	wakeLimit = 30 * time.Second
	// callLimit bounds a call, and share the calls of one cluster at once. A customer's
	// plane may answer slowly or never, and other customers must not wait for it.
	callLimit = 45 * time.Second
	share     = 4
	// endpointEvery is the pause between two reads of a HostedCluster whose plane is
	// ready and whose status does not have the endpoint yet.
	endpointEvery = 50 * time.Millisecond
)

// Reasons of the condition Issued, when it is False.
const (
	InvalidRequest   = "InvalidRequest"   // the Credential can never be issued as it is
	Expired          = "Expired"          // it was issued, or was not, and its time is over
	ClusterNotFound  = "ClusterNotFound"  // there is no such HostedCluster, or it is being deleted
	PlaneUnavailable = "PlaneUnavailable" // the plane does not come; it is tried again
)

// Run issues and revokes until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Workers == 0 {
		o.Workers = 32
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Longest == 0 {
		o.Longest = cluster.MaxCredentialLifetime
	}
	i := &issuer{client: o.Client, planes: o.Planes, longest: o.Longest, log: o.Log}
	return loop.Run(ctx, loop.Options{
		Client: o.Client, Resource: apihosting.Credentials(), Reconcile: i.reconcile,
		Workers: o.Workers, Owner: func(o *unstructured.Unstructured) string { return clusterOf(o).String() },
		Share: share, Limit: callLimit, MaxBackoff: 5 * time.Second, Log: o.Log, Observe: o.Observe,
	})
}

// clusterOf returns the hosted cluster of a Credential.
func clusterOf(object *unstructured.Unstructured) controlplane.ID {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "clusterName")
	return controlplane.ID{Namespace: object.GetNamespace(), Name: name}
}

type issuer struct {
	client  dynamic.Interface
	planes  Planes
	longest time.Duration
	log     *slog.Logger
}

func (i *issuer) reconcile(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration,
	error) {
	if object == nil {
		return 0, nil
	}
	c, err := loop.Decode[apihosting.Credential](object)
	if err != nil {
		return 0, i.refuse(ctx, object, &apihosting.Credential{}, InvalidRequest, "the Credential cannot be read")
	}
	hc, err := i.hostedCluster(ctx, key.Namespace, c.Spec.ClusterName)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if object.GetDeletionTimestamp() != nil {
		return 0, i.revoke(ctx, object, c, hc, now)
	}
	w, err := parseCredential(c, i.longest)
	if err != nil {
		return 0, i.refuse(ctx, object, c, InvalidRequest, err.Error())
	}
	if hc == nil {
		return time.Second, i.refuse(ctx, object, c, ClusterNotFound, fmt.Sprintf("there is no HostedCluster %s",
			c.Spec.ClusterName))
	}
	if !now.Before(w.expires) {
		return 0, i.expire(ctx, object, c)
	}
	if isIssued(c, w) {
		// of this generation
		if err := i.report(ctx, object, c, c.Status, metav1.ConditionTrue, "AsExpected", ""); err != nil {
			return 0, err
		}
		return w.expires.Sub(now), nil // the cluster's administrators may have removed the binding
	}
	if !hasFinalizer(object) {
		return 0, i.addFinalizer(ctx, object) // the watch brings the changed object
	}
	admin, err := i.wakePlane(ctx, clusterOf(object))
	if err != nil {
		if ctx.Err() != nil {
			return 0, err
		}
		return 0, errors.Join(err, i.refuse(ctx, object, c, PlaneUnavailable,
			"the control plane is not there to accept it; this is tried again"))
	}
	if hc.Status.ControlPlaneEndpoint.Host == "" {
		return endpointEvery, nil
	}
	status, err := i.issue(ctx, clusterOf(object), w, admin, hc)
	if err != nil {
		return 0, err
	}
	if err := i.report(ctx, object, c, status, metav1.ConditionTrue, "AsExpected", ""); err != nil {
		return 0, err
	}
	i.log.Info("credential issued", "namespace", key.Namespace, "cluster", c.Spec.ClusterName, "credential", c.Spec.ID,
		"expires", w.expires)
	return time.Until(w.expires), nil
}

// issue makes the binding and the certificate. The certificate is not published
// before its binding has an effect, so that it can be used at once.
func (i *issuer) issue(ctx context.Context, id controlplane.ID, w order, admin controlplane.Admin,
	hc *hypershift.HostedCluster) (apihosting.CredentialStatus, error) {
	certificate, err := i.planes.Sign(id, w.certificate())
	if err != nil {
		return apihosting.CredentialStatus{}, err
	}
	b, err := bindingsOf(admin)
	if err != nil {
		return apihosting.CredentialStatus{}, err
	}
	if err := b.grant(ctx, w); err != nil {
		return apihosting.CredentialStatus{}, err
	}
	if err := b.awaitEffect(ctx, w); err != nil {
		return apihosting.CredentialStatus{}, err
	}
	if err := b.removeExpired(ctx, time.Now()); err != nil {
		i.log.Warn("bindings of expired credentials stay", "cluster", id.String(), "error", err)
	}
	serverName := admin.ServerName // in the plane's serving certificate
	if serverName == "" {
		serverName = hc.Spec.KubeAPIServerDNSName
	}
	return apihosting.CredentialStatus{
		Certificate: string(certificate.PEM), CABundle: string(certificate.CAPEM),
		Server: endpointURL(hc.Status.ControlPlaneEndpoint), TLSServerName: serverName,
		ExpirationTimestamp: &metav1.Time{Time: w.expires},
	}, nil
}

// expire removes the binding of an expired credential when its plane serves. It wakes
// no plane, because the binding grants nothing.
func (i *issuer) expire(ctx context.Context, object *unstructured.Unstructured, c *apihosting.Credential) error {
	if admin, err := i.planes.Client(clusterOf(object)); err == nil {
		if err := remove(ctx, admin, apihosting.CredentialGroup(c.Spec.ID)); err != nil {
			return err
		}
	}
	return i.refuse(ctx, object, c, Expired, "the certificate's time is over")
}

// revoke removes the binding of a Credential that is being deleted, and then the
// Credential's finalizer. A cluster that is being deleted needs no revocation. A plane that
// has left for another management cluster has the Credential there, and stays as it is.
func (i *issuer) revoke(ctx context.Context, object *unstructured.Unstructured, c *apihosting.Credential,
	hc *hypershift.HostedCluster, now time.Time) error {
	if !hasFinalizer(object) {
		return nil
	}
	if hc != nil && hc.Status.HasLeft() {
		return i.removeFinalizer(ctx, object)
	}
	// The expiration is set with the first certificate and never removed.
	valid := c.Status.ExpirationTimestamp != nil && now.Before(c.Status.ExpirationTimestamp.Time)
	admin, err := i.planes.Client(clusterOf(object))
	serves := err == nil
	switch {
	case hc == nil, !valid && !serves:
	case serves:
		// A webhook of the customer's may refuse the deletion for ever. An expired
		// certificate's binding is not worth the wait.
		if err := revoke(ctx, admin, c.Spec.ID); err != nil && valid {
			return err
		}
	default:
		admin, err := i.wakePlane(ctx, clusterOf(object))
		if err != nil {
			return err
		}
		if err := revoke(ctx, admin, c.Spec.ID); err != nil {
			return err
		}
	}
	if err := i.removeFinalizer(ctx, object); err != nil {
		return err
	}
	i.log.Info("credential revoked", "namespace", c.Namespace, "cluster", c.Spec.ClusterName, "credential", c.Spec.ID)
	return nil
}

// wakePlane returns the way into a plane, and wakes it when it does not serve.
func (i *issuer) wakePlane(ctx context.Context, cluster controlplane.ID) (controlplane.Admin, error) {
	if admin, err := i.planes.Client(cluster); !errors.Is(err, controlplane.ErrNotServing) {
		return admin, err
	}
	ctx, cancel := context.WithTimeout(ctx, wakeLimit)
	defer cancel()
	if err := i.planes.Wake(ctx, cluster); err != nil {
		return controlplane.Admin{}, fmt.Errorf("waking the plane of %s: %w", cluster, err)
	}
	return i.planes.Client(cluster)
}

// hostedCluster returns nil when the HostedCluster does not exist or is being deleted.
func (i *issuer) hostedCluster(ctx context.Context, namespace, name string) (*hypershift.HostedCluster, error) {
	if name == "" {
		return nil, nil
	}
	object, err := i.client.Resource(hypershift.HostedClusters()).Namespace(namespace).Get(ctx, name,
		metav1.GetOptions{})
	switch {
	case loop.IsGone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading HostedCluster %s/%s: %w", namespace, name, err)
	case object.GetDeletionTimestamp() != nil:
		return nil, nil
	}
	return loop.Decode[hypershift.HostedCluster](object)
}
