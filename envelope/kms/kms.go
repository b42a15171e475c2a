// Package kms wraps data keys with a program of its own: a KMS plugin of Kubernetes (API v2, k8s.io/kms), which serves
// gRPC on a Unix socket and has, or asks a cloud for, a key that no process of Atoll sees.
//
// A Plugin is an envelope.KMS, as envelope.KeyFile is one; envelope/kmstest is the suite that both pass. A process
// that may connect to the socket can unwrap data keys, and one that may replace the socket sees them, so the directory
// belongs to the plugin and to Atoll alone.
//
// Tools and services import it; it imports envelope alone.
package kms

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	kmsv2 "k8s.io/kms/apis/v2"

	"atoll.dev/envelope"
)

const (
	// callTimeout bounds one call of the plugin, which may call a cloud's KMS.
	callTimeout = 3 * time.Second
	// reconnectAfter is the longest pause between two attempts to connect to a plugin that does not run.
	reconnectAfter = time.Second

	// Limits of the API of plugins, which Kubernetes has, too.
	maxCiphertext  = 1 << 10
	maxKeyID       = 1 << 10
	maxAnnotations = 32 << 10
)

// keyIDPrefix begins the names of the keys of plugins, which distinguishes them from the names of a key file's keys.
const keyIDPrefix = "kms:"

// ErrUnavailable is the error of a plugin that does not answer, or answers that it cannot work now. The same call may
// succeed later.
var ErrUnavailable = errors.New("the KMS plugin is unavailable")

// Plugin is an envelope.KMS that calls a KMS plugin. Many goroutines may use a Plugin. Close ends it.
type Plugin struct {
	endpoint string
	conn     *grpc.ClientConn
	client   kmsv2.KeyManagementServiceClient
	problem  atomic.Pointer[error] // of the last call; nil: the plugin has answered it
}

// New returns the plugin at an endpoint, unix:///PATH, without a call of it, for a service that has other work while
// the plugin does not answer. The error is about the endpoint.
func New(endpoint string) (*Plugin, error) {
	path, isUnix := strings.CutPrefix(endpoint, "unix://")
	if !isUnix || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("KMS plugin %q: its endpoint is unix:///PATH, the socket of a KMS v2 plugin of Kubernetes",
			endpoint)
	}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: callTimeout, Backoff: backoff.Config{
			BaseDelay: reconnectAfter / 10, Multiplier: 2, Jitter: 0.2, MaxDelay: reconnectAfter}}))
	if err != nil {
		return nil, fmt.Errorf("KMS plugin %s: %w", endpoint, err)
	}
	return &Plugin{endpoint: endpoint, conn: conn, client: kmsv2.NewKeyManagementServiceClient(conn)}, nil
}

// Open calls New and reads the plugin's status. It fails when the plugin does not answer or is not healthy, because a
// process without data keys in memory cannot work without the plugin. The error names the next step.
func Open(ctx context.Context, endpoint string) (*Plugin, error) {
	p, err := New(endpoint)
	if err != nil {
		return nil, err
	}
	if err := p.check(ctx); err != nil {
		p.Close()
		return nil, fmt.Errorf("%w; without it nothing that it sealed can be read: start the plugin, see that this user may "+
			"open its socket, and start again", err)
	}
	return p, nil
}

// Close closes the connection.
func (p *Plugin) Close() { p.conn.Close() }

// Problem returns the reason why the plugin did not answer the last call; nil when it did. Meanwhile data keys in
// memory still work; an operation that needs another key fails, as does Open.
func (p *Plugin) Problem() error {
	if err := p.problem.Load(); err != nil {
		return *err
	}
	return nil
}

// check asks the plugin for its status.
func (p *Plugin) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := p.client.Status(ctx, &kmsv2.StatusRequest{})
	switch {
	case err != nil:
		return p.callError("asking for its status", err)
	case s.Version != "v2" && s.Version != "v2beta1":
		return fmt.Errorf("KMS plugin %s: it speaks version %q, and v2 is needed", p.endpoint, s.Version)
	case s.Healthz != "ok":
		return fmt.Errorf("KMS plugin %s: %w: it says %q", p.endpoint, ErrUnavailable, s.Healthz)
	}
	return checkKeyID(p.endpoint, s.KeyId)
}

// Wrap implements envelope.KMS. The plugin chooses the key; after a rotation it returns another name.
func (p *Plugin) Wrap(ctx context.Context, dataKey []byte) (w envelope.WrappedKey, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := p.client.Encrypt(ctx, &kmsv2.EncryptRequest{Plaintext: dataKey, Uid: requestID()})
	if err != nil {
		return w, p.callError("wrapping a data key", err)
	}
	p.problem.Store(nil)
	if err := checkKeyID(p.endpoint, r.KeyId); err != nil {
		return w, err
	}
	annotations := 0
	for name, value := range r.Annotations {
		annotations += len(name) + len(value)
	}
	if n := len(r.Ciphertext); n == 0 || n > maxCiphertext || annotations > maxAnnotations {
		return w, fmt.Errorf("KMS plugin %s: it answers a ciphertext of %d bytes with %d bytes of annotations, %d and %d "+
			"are possible", p.endpoint, n, annotations, maxCiphertext, maxAnnotations)
	}
	return envelope.WrappedKey{KeyID: keyIDPrefix + r.KeyId, Ciphertext: r.Ciphertext, Annotations: r.Annotations}, nil
}

// Unwrap implements envelope.KMS. The error is ErrUnavailable when the plugin does not answer or cannot work now, and
// envelope.ErrWrongKey with envelope.ErrCorrupt when it answers that it did not make this ciphertext.
func (p *Plugin) Unwrap(ctx context.Context, w envelope.WrappedKey) ([]byte, error) {
	id, isPlugins := strings.CutPrefix(w.KeyID, keyIDPrefix)
	if !isPlugins {
		return nil, fmt.Errorf("KMS plugin %s: key %q, which encrypts this, is of a key file: give this process the file, "+
			"too", p.endpoint, w.KeyID)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := p.client.Decrypt(ctx, &kmsv2.DecryptRequest{Ciphertext: w.Ciphertext, KeyId: id, Annotations: w.Annotations,
		Uid: requestID()})
	if err != nil {
		return nil, p.callError("unwrapping a data key of key "+id, err)
	}
	p.problem.Store(nil)
	return r.Plaintext, nil
}

// IsPluginKey reports whether a plugin has wrapped a data key.
func IsPluginKey(w envelope.WrappedKey) bool { return strings.HasPrefix(w.KeyID, keyIDPrefix) }

// callError returns the error of a failed call, and stores it for Problem if the plugin is unavailable. InvalidArgument
// and DataLoss mean a damaged key. Every other code, Unknown too, means that the plugin or its cloud cannot work now.
func (p *Plugin) callError(what string, err error) error {
	text := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.InvalidArgument, codes.DataLoss:
		p.problem.Store(nil)
		return fmt.Errorf("KMS plugin %s: %s: %w, %w: %s", p.endpoint, what, envelope.ErrWrongKey, envelope.ErrCorrupt, text)
	default:
		err = fmt.Errorf("KMS plugin %s: %s: %w: %s", p.endpoint, what, ErrUnavailable, text)
		p.problem.Store(&err)
		return err
	}
}

// checkKeyID refuses a key id that cannot be stored or cannot be shown.
func checkKeyID(endpoint, id string) error {
	isPrintable := utf8.ValidString(id) && strings.IndexFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	if id == "" || len(id) > maxKeyID || !isPrintable {
		return fmt.Errorf("KMS plugin %s: the name of its key is empty, longer than %d bytes, or no text", endpoint, maxKeyID)
	}
	return nil
}

// requestID returns a random number by which the plugin's log names a request.
func requestID() string {
	id := make([]byte, 8)
	rand.Read(id) // it never returns an error
	return hex.EncodeToString(id)
}
