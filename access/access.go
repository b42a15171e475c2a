// Package access identifies callers of the region and decides what they may do.
//
// A Router registers each route of a front with the action that a caller needs.
// It identifies the sender of a request, decides, and only then calls the
// handler. The handler reads the proven Identity from the context, never from headers.
//
// A Verifier verifies AWS Signature Version 4 for the service execute-api, so
// that curl --aws-sigv4, awscurl and the signers of the AWS SDKs work unchanged.
// A KeyStore stores the region's key pairs and follows its database's feed:
// verification makes no query, and a disabled key stops working within a second.
//
// MayCall is the table of which of the region's services may call which.
//
// Fronts import this package, and cli composes it. No other service imports it:
// cli gives them MayCall as a function of the caller's certificate.
//
// # Requests that are sent again
//
// A signature proves who signed a request, not that the request is new. So the
// Router executes one mutation with a signature (Signatures). Whoever reads a signed
// GET inside TLS can send it again within 15 minutes of its date.
package access

import (
	"context"
	"net/netip"
	"regexp"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
)

// Identity is the proven sender of a request.
type Identity struct {
	Principal   policy.Principal
	Account     cluster.Account // 12 digits
	AccessKeyID string
	Privileged  bool // by its account
	RequestID   string
	Evidence    Evidence
	SourceIP    netip.Addr // of the sender, when a gateway has proved it; otherwise zero

	// Proof is zero in the context of a handler, and when the identity was proved by
	// something else than the signature of one request.
	Proof Proof

	linkCode string // of a request that links the identity of its token; the caller may take no other action
}

// Proof is the signature by which the sender of a request proved its identity.
type Proof struct {
	Signature  [32]byte
	ValidUntil time.Time       // the last moment at which the signature is accepted
	Account    cluster.Account // of the sender; the Router sets it
}

type identityKey struct{}

// withIdentity returns a context with an identity. A Router calls it.
func withIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns the identity that a Router has proved. ok is false for a
// public route, and for a handler that runs without a Router, which is a defect of
// its wiring.
func FromContext(ctx context.Context) (id Identity, ok bool) {
	id, ok = ctx.Value(identityKey{}).(Identity)
	return id, ok
}

// Key is a key pair with its secret, for verification.
type Key struct {
	AccessKeyID  string
	Secret       string
	SessionToken string // of temporary credentials; otherwise empty
	Account      cluster.Account
	Principal    policy.Principal
	Privileged   bool // its account is
	Disabled     bool
	Expires      time.Time // end of temporary credentials; zero: never
}

// String hides the secret: structs are logged by mistake.
func (k Key) String() string { return "key pair " + k.AccessKeyID }

// GoString hides the secret from %#v.
func (k Key) GoString() string { return k.String() }

// Keys finds key pairs for a Verifier.
type Keys interface {
	// Lookup returns the key pair of an access key id, disabled ones too.
	// It answers from memory. known is false for an id of no key pair. The
	// error is ErrNotReady while the key pairs were never read; when they cannot
	// be read again, the answer is by the last read. Several goroutines may
	// call it.
	Lookup(accessKeyID string) (key Key, known bool, err error)
}

var (
	accountPattern   = regexp.MustCompile(`^[0-9]{12}$`)
	principalPattern = regexp.MustCompile(`^arn:[a-z-]+:(iam|sts)::([0-9]{12}):[A-Za-z0-9+=,.@_/-]{1,512}$`)
	keyIDPattern     = regexp.MustCompile(`^A[KS]IA[A-Z2-7]{16}$`)
)

// IsAccountID reports whether a text has the form of an account's id: 12 digits.
func IsAccountID(text string) bool { return accountPattern.MatchString(text) }
