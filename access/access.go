// Package access says who is calling the region and what they may do. It
// verifies AWS Signature Version 4, for the service execute-api, against the
// key pairs of the region's store, so that curl --aws-sigv4, awscurl and the
// signers of the AWS SDKs work unchanged; it keeps those key pairs; and it
// holds the table of which of the region's services may call which.
//
// Authenticate stands before every handler of a front: a request that it lets
// through has a proven Identity in its context and none in its headers. Keys
// follows the store's feed, so that verification makes no query and a disabled
// key stops working at once.
//
// Fronts import it, and cli composes it. No other service imports it: they
// meet callers on the wire, by certificate, and ask MayCall's table through
// the peer names that cli hands them.
//
// # What a signature does not do
//
// A signature proves who made a request, not that it is made for the first
// time. Whoever can read a request inside TLS can send the same request again
// within 15 minutes of its date, or while a presigned one is valid. Writes are
// safe against that by what they are: they name a version, or say the same
// thing twice.
package access

import (
	"context"
	"regexp"
)

// Identity is who makes a request: proven, never claimed.
type Identity struct {
	Principal   string // ARN
	Account     string // 12 digits
	AccessKeyID string
	Privileged  bool // by its account
	RequestID   string
}

type identityKey struct{}

// WithIdentity returns a context that carries id. Authenticate does it; tests
// of handlers may.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns the identity that Authenticate proved. ok is false where
// no identity is needed, and where a handler runs without Authenticate, which
// is a fault of its wiring.
func FromContext(ctx context.Context) (id Identity, ok bool) {
	id, ok = ctx.Value(identityKey{}).(Identity)
	return id, ok
}

// A Key is a key pair as verification needs it.
type Key struct {
	AccessKeyID  string
	Secret       string
	SessionToken string // of temporary credentials; empty for a key pair of the region
	Account      string
	Principal    string
	Privileged   bool // the account's
	Disabled     bool
}

// String hides the secret, since structs end up in logs.
func (k Key) String() string { return "key pair " + k.AccessKeyID }

// GoString hides the secret from %#v.
func (k Key) GoString() string { return k.String() }

// Keys is where Authenticate finds key pairs.
type Keys interface {
	// Lookup returns the key pair of an access key id, disabled ones too.
	// It answers from memory. known is false for an id that nobody has. The
	// error, ErrNotReady, means that it cannot tell, since it never had the
	// key pairs; while they merely cannot be refreshed it answers by the last
	// that it had.
	Lookup(accessKeyID string) (key Key, known bool, err error)
}

var (
	accountPattern   = regexp.MustCompile(`^[0-9]{12}$`)
	principalPattern = regexp.MustCompile(`^arn:[a-z-]+:(iam|sts)::([0-9]{12}):[A-Za-z0-9+=,.@_/-]{1,512}$`)
	keyIDPattern     = regexp.MustCompile(`^AKIA[A-Z2-7]{16}$`)
)
