package arm

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // Azure's metadata names certificates by it; the certificates themselves are compared
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/rest"
)

// byARM is the method of authentication with a client certificate that ARM's metadata publish.
const byARM access.Method = "arm-certificate"

// Certificates are the client certificates that ARM publishes. Run keeps them up to date; while the
// source does not answer, the last ones count until they expire.
type Certificates struct {
	source string // a file or an https URL
	log    *slog.Logger
	client *http.Client
	known  atomic.Pointer[[]publishedCertificate]
}

type publishedCertificate struct {
	der               []byte
	thumbprint        string
	notBefore, notAft time.Time
}

const (
	// reloadPause is the time between two reads of a file of metadata, reloadURLPause that between two reads of a URL.
	reloadPause    = 5 * time.Second
	reloadURLPause = 10 * time.Minute
	maxMetadata    = 1 << 20
)

// NewCertificates returns the certificates of a source and reads them once.
func NewCertificates(ctx context.Context, source string, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{source: source, log: log, client: &http.Client{Timeout: 10 * time.Second,
		CheckRedirect: refuseClearText}}
	if strings.HasPrefix(source, "http://") {
		return nil, errors.New("ARM's metadata need an https URL or a file")
	}
	return c, c.load(ctx)
}

// maxRedirects is how many redirects lead to the metadata at most.
const maxRedirects = 5

// refuseClearText refuses a redirect to a URL without TLS: who controls the network there could name certificates of
// its own, and would be taken for ARM.
func refuseClearText(r *http.Request, via []*http.Request) error {
	if r.URL.Scheme != "https" {
		return fmt.Errorf("the redirect to %s is refused: ARM's metadata need an https URL", r.URL.Redacted())
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// Run reads the source again and again until ctx ends.
func (c *Certificates) Run(ctx context.Context) error {
	every := reloadPause
	if c.isURL() {
		every = reloadURLPause
	}
	for pause.For(ctx, every) {
		if err := c.load(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("reading ARM's certificates failed; the last ones count", "error", err)
		}
	}
	return context.Cause(ctx)
}

func (c *Certificates) isURL() bool { return strings.HasPrefix(c.source, "https://") }

func (c *Certificates) load(ctx context.Context) error {
	data, err := c.read(ctx)
	if err != nil {
		return fmt.Errorf("reading ARM's metadata: %w", err)
	}
	var metadata struct {
		ClientCertificates []struct {
			Thumbprint  string    `json:"thumbprint"`
			NotBefore   time.Time `json:"notBefore"`
			NotAfter    time.Time `json:"notAfter"`
			Certificate string    `json:"certificate"`
		} `json:"clientCertificates"`
	}
	if err := json.Unmarshal(data, &metadata); err != nil {
		return fmt.Errorf("reading ARM's metadata: %w", err)
	}
	var known []publishedCertificate
	for _, published := range metadata.ClientCertificates {
		der, err := base64.StdEncoding.DecodeString(published.Certificate)
		if err != nil {
			return fmt.Errorf("reading ARM's certificate %s: %w", published.Thumbprint, err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("reading ARM's certificate %s: %w", published.Thumbprint, err)
		}
		sum := sha1.Sum(der) //nolint:gosec // see the import
		known = append(known, publishedCertificate{der: der, thumbprint: hex.EncodeToString(sum[:]),
			notBefore: later(cert.NotBefore, published.NotBefore), notAft: earlier(cert.NotAfter, published.NotAfter)})
	}
	if len(known) == 0 {
		return errors.New("reading ARM's metadata: they name no certificate")
	}
	c.known.Store(&known)
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earlier returns the earlier of two times; a zero b is ignored.
func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (c *Certificates) read(ctx context.Context) ([]byte, error) {
	if !c.isURL() {
		return os.ReadFile(c.source)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.source, nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, maxMetadata))
}

// thumbprintOf returns the thumbprint of a certificate that ARM publishes and that is valid now.
func (c *Certificates) thumbprintOf(cert *x509.Certificate, now time.Time) (thumbprint string, published bool) {
	for _, known := range *c.known.Load() {
		if bytes.Equal(known.der, cert.Raw) {
			return known.thumbprint, !now.Before(known.notBefore) && now.Before(known.notAft)
		}
	}
	return "", false
}

// ServerTLS returns a configuration with the certificate of server that asks for a client
// certificate of any authority: Identify compares it with the published ones, and the handshake
// proves that the sender has its key. A sender that ARM's tokens can prove needs none.
func (a *Front) ServerTLS(server *tls.Config) *tls.Config {
	asks := tls.RequireAnyClientCert
	if a.f.tokens != nil {
		asks = tls.RequestClientCert
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: server.Certificates,
		GetCertificate: server.GetCertificate, ClientAuth: asks, SessionTicketsDisabled: true}
}

// armProof is how the sender of a request has proved that it is ARM.
type armProof struct {
	evidence access.Evidence
	request  requestDigest // of a signed request; zero for every other one
}

func (p armProof) isOfSignedRequest() bool { return p.request != requestDigest{} }

func refuseSender(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusUnauthorized, codeUnauthenticated, format, args...)
}

// refuseToken returns the answer 401 to a request whose token does not prove that ARM sends it.
func refuseToken(problem error) *rest.Error {
	return refuseSender("The token is not one of Azure Resource Manager for this region: %s.", problem)
}

// authenticateARM verifies that ARM sends a request: by a token that is bound to a key of ARM, or by a
// certificate that ARM publishes. It returns the proof and the body of the request. A token that does not
// verify is refused, also when a valid certificate comes with it.
func (f *front) authenticateARM(r *http.Request, path string) (armProof, []byte, error) {
	refused := func(format string, args ...any) (armProof, []byte, error) {
		return armProof{}, nil, refuseSender(format, args...)
	}
	isBearer := false
	if f.tokens != nil && len(r.Header.Values("Authorization")) > 0 {
		proof, err := f.tokens.verify(r, path, time.Now())
		if e, isAnswer := errors.AsType[*rest.Error](err); isAnswer {
			if e.Status != http.StatusUnauthorized {
				return armProof{}, nil, unavailable(err)
			}
			return armProof{}, nil, refuseToken(errors.New("its key is unknown"))
		}
		if err != nil {
			return armProof{}, nil, refuseToken(err)
		}
		if proof.isBound || f.tokens.o.Binding == BindingOptional {
			body, err := rest.ReadBody(r, maxBody)
			if err == nil && !proof.isOfBody(body) {
				err = refuseToken(errors.New("it is of another body"))
			}
			return armProof{access.Evidence{Method: byToken, Credential: proof.application, Until: proof.until},
				proof.request}, body, err
		}
		isBearer = true
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		if isBearer {
			return refused("A bearer token does not prove its sender: sign the request (PoP), or send a " +
				"certificate that Azure Resource Manager publishes.")
		}
		return refused("The request has no client certificate.")
	}
	thumbprint, published := f.certificates.thumbprintOf(r.TLS.PeerCertificates[0], time.Now())
	if !published {
		return refused("The client certificate is none that Azure Resource Manager publishes.")
	}
	body, err := rest.ReadBody(r, maxBody)
	return armProof{evidence: access.Evidence{Method: byARM, Credential: thumbprint}}, body, err
}

// Identify implements access.Identifier: the sender is ARM, and acts for the account of the subscription
// that the path names. It reads ARM's headers only after that proof. It forgets a signed request that failed but may
// succeed later, so that its sender may send it again.
func (f *front) Identify(r *http.Request) (access.Identity, []byte, error) {
	proof, body, err := f.authenticateARM(r, requestOf(r.Context()).path)
	var identity access.Identity
	if err == nil {
		identity, err = f.identityOf(r, proof.evidence)
	}
	if err == nil && proof.isOfSignedRequest() {
		err = f.tokens.recordUse(r.Context(), r.Method, proof.request, identity.Account)
	}
	if err == nil {
		return identity, body, nil
	}
	if proof.isOfSignedRequest() && isTemporary(err) {
		f.tokens.nonces.forget(proof.request)
	}
	return access.Identity{}, nil, err
}

// identityOf returns the account of the subscription that the path of ARM's request names, and who acts for it.
func (f *front) identityOf(r *http.Request, evidence access.Evidence) (access.Identity, error) {
	q := requestOf(r.Context())
	parts := strings.Split(r.URL.Path, "/")
	id := ""
	if len(parts) > 2 && parts[1] == "subscriptions" {
		id = parts[2]
	}
	if r.URL.Path == rpOperationsPath { // of every subscription
		return access.Identity{Principal: policy.Principal(byARM), Account: cluster.Account(byARM), Evidence: evidence}, nil
	}
	if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
		if len(parts) > 1 && parts[1] == "subscriptions" {
			return access.Identity{}, rest.Errorf(http.StatusBadRequest, codeInvalidSubscription,
				"The provided subscription identifier '%s' is malformed or invalid.", id)
		}
		return access.Identity{}, rest.Errorf(http.StatusNotFound, codeNotFound,
			"The requested path could not be found.")
	}
	var err error
	if q.subscription, err = f.subscription(r.Context(), id); err != nil {
		return access.Identity{}, unavailable(err)
	}
	if err := f.findResource(r.Context(), q, id, r.URL.Path); err != nil {
		return access.Identity{}, unavailable(err)
	}
	account := q.subscription.Account
	if account == "" {
		account = accountOf(id, 0) // to be registered
	}
	evidence.Subject, evidence.Issuer = r.Header.Get("X-Ms-Client-Principal-Name"), r.Header.Get("X-Ms-Home-Tenant-Id")
	return access.Identity{Principal: principalOf(account, r.Header.Get("X-Ms-Client-Object-Id")),
		Account: account, Evidence: evidence}, nil
}

// unavailable returns the answer to a request that could not be identified because a read failed.
func unavailable(err error) error {
	if e := classify(err); e != nil {
		return e
	}
	return err
}

// Actions of this front that concern ARM and a subscription, or no customer at all. The proof that ARM sends
// the request is enough for these.
const (
	actionPutSubscription access.Action = "PutSubscription"
	actionGetSubscription access.Action = "GetSubscription"
	actionReadOperation   access.Action = "ReadOperation"
	actionReadOffers      access.Action = "ReadOffers"
	actionListOperations  access.Action = "ListRPOperations"
)

// decider implements access.Policy. It decides by the policies of the account; requests of ARM about
// subscriptions, operations and offers need no policy.
type decider struct{ *access.Directory }

// Decide implements access.Policy. A subscription without an account has nothing to read.
func (d decider) Decide(ctx context.Context, q access.Question) (access.Grant, error) {
	isRead := strings.HasPrefix(string(q.Action), "List") || strings.HasPrefix(string(q.Action), "Describe")
	if isRead && !d.Caller(q.Caller.Account, q.Caller.Principal).IsProvisioned {
		return access.Grant{Reason: "azure"}, nil
	}
	switch q.Action {
	case actionPutSubscription, actionGetSubscription, actionReadOperation, actionReadOffers, "":
		return access.Grant{Reason: "azure"}, nil
	case actionListOperations: // every subscription gets the same
		return access.Grant{Reason: "azure"}, nil
	}
	return d.Directory.Decide(ctx, q)
}

// resources implements access.Resources: a cluster or node pool has the id of its Cluster or
// NodePool at the lifecycle manager, by which policies name it.
type resources struct{}

// Identify implements access.Resources.
func (resources) Identify(r *http.Request, caller access.Identity, route access.Route) policy.Resource {
	of := policy.Resource{Kind: policy.Kind(route.Kind), ID: string(caller.Account), Account: caller.Account}
	if of.Kind != policy.Cluster && of.Kind != policy.NodePool {
		return of
	}
	if q := requestOf(r.Context()); q.resource != nil {
		return resourceOf(*q.resource, q.parent)
	} else if of.Kind == policy.Cluster && q.parent != nil { // a missing part of a cluster
		return resourceOf(*q.parent, nil)
	}
	of.ID = "" // it does not exist
	return of
}

// Complete implements access.Resources; the resource is complete.
func (resources) Complete(_ context.Context, _ access.Identity, of policy.Resource) (policy.Resource, error) {
	return of, nil
}
