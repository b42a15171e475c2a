// Package kubelets approves the certificate requests of a plane's kubelets. The controller manager
// signs the approved ones.
//
// A kubelet comes with a bootstrap token, whose groups name the only node, or the only node pool,
// that it may join as. With it the kubelet asks for its client certificate; with that certificate it
// asks for its serving certificate and renews both. The function decide says which requests are
// approved: those for the requester's own name, and for addresses that its own Node has and no other
// Node has.
//
// Requests of everybody else stay as they are: a customer may approve them himself.
//
// Only package serve uses it.
package kubelets

import (
	"context"
	"fmt"
	"net"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/certificates"
)

const workers = 2

// Run approves and denies requests until ctx is done. config configures its client of the API server.
func Run(ctx context.Context, config *rest.Config) error {
	config = rest.AddUserAgent(config, "kubelet-approver")
	config.QPS = -1 // the API server's own fairness is the limit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the client of the approver of kubelets: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	a := &approver{client: client}
	controller := certificates.NewCertificateController(ctx, "kubelet-approver", client,
		factory.Certificates().V1().CertificateSigningRequests(), a.handle)
	factory.Start(ctx.Done())
	controller.Run(ctx, workers)
	return nil
}

type approver struct{ client kubernetes.Interface }

// handle decides about one request, and writes the decision to it. An error is tried again later.
func (a *approver) handle(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if approved, denied := certificates.GetCertApprovalCondition(&csr.Status); approved || denied ||
		len(csr.Status.Certificate) > 0 {
		return nil
	}
	r, ours := read(csr)
	if !ours {
		return nil
	}
	n, err := a.nodeOf(ctx, r)
	if err != nil {
		return err
	}
	d := decide(r, n)
	if d.verdict == wait {
		return certificates.IgnorableError("request %s of %s: %s", csr.Name, r.user, d.message)
	}
	c := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue, Reason: "AtollApprove", Message: d.message}
	if d.verdict == deny {
		c.Type, c.Reason = certificatesv1.CertificateDenied, "AtollDeny"
	}
	csr.Status.Conditions = append(csr.Status.Conditions, c)
	_, err = a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr,
		metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("writing the decision about request %s: %w", csr.Name, err)
	}
	return nil
}

// nodeOf reads what decide has to know about the Node that a request names.
func (a *approver) nodeOf(ctx context.Context, r request) (node, error) {
	if r.name == "" {
		return node{}, nil
	}
	object, err := a.client.CoreV1().Nodes().Get(ctx, r.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return node{}, nil
	}
	if err != nil {
		return node{}, fmt.Errorf("reading node %s: %w", r.name, err)
	}
	n := node{exists: true}
	for _, at := range object.Status.Addresses {
		n.addresses = append(n.addresses, at.Address)
	}
	if !r.serving || !n.covers(r) {
		return n, nil
	}
	// The API server's memory is new enough.
	all, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return node{}, fmt.Errorf("listing the nodes: %w", err)
	}
	for i := range all.Items {
		if other := &all.Items[i]; other.Name != r.name && slices.ContainsFunc(other.Status.Addresses, r.claims) {
			n.rival = other.Name
		}
	}
	return n, nil
}

// claims reports whether the request is for an address.
func (r request) claims(at corev1.NodeAddress) bool {
	if ip := net.ParseIP(at.Address); ip != nil {
		return slices.ContainsFunc(r.csr.IPAddresses, ip.Equal)
	}
	return slices.Contains(r.csr.DNSNames, at.Address)
}
