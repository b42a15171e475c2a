package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
)

// A self-describing object is a line of JSON with the wrapped key, the envelope, and then the content, sealed with that
// key under the object's name.
type envelope struct {
	Format int        `json:"format"`
	Key    WrappedKey `json:"key"`
}

const envelopeFormat = 1

// sealSelfDescribing returns the self-describing object of a content.
func (k chainKey) sealSelfDescribing(name string, content []byte) ([]byte, error) {
	head, err := json.Marshal(envelope{Format: envelopeFormat, Key: k.wrapped})
	if err != nil {
		return nil, err
	}
	sealed, err := seal(k.data, name, content)
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), sealed...), nil
}

// parseEnvelope splits a self-describing object.
func parseEnvelope(name string, object []byte) (e envelope, sealed []byte, err error) {
	head, sealed, ok := bytes.Cut(object, []byte("\n"))
	if !ok || json.Unmarshal(head, &e) != nil {
		return e, nil, fmt.Errorf("%s: %w: it does not begin with its key", name, ErrCorrupt)
	}
	if e.Format != envelopeFormat {
		return e, nil, fmt.Errorf("%s: format %d is unknown; a newer Atoll wrote it", name, e.Format)
	}
	return e, sealed, nil
}

// Box seals objects that describe themselves, all with one data key. An Opener opens them with nothing but the KMS.
// Many goroutines may use a Box.
type Box struct{ key chainKey }

// NewBox returns a Box with a new data key, which the KMS wraps.
func NewBox(ctx context.Context, kms KMS) (*Box, error) {
	key, err := newChainKey(ctx, kms)
	if err != nil {
		return nil, err
	}
	return &Box{key}, nil
}

// Seal returns the object in which the content is encrypted. Nobody can open it under another name.
func (b *Box) Seal(name string, content []byte) ([]byte, error) {
	return b.key.sealSelfDescribing(name, content)
}

// Opener opens objects of any Box whose key the KMS has. It asks the KMS once for each data key. Many goroutines may
// use an Opener.
type Opener struct {
	kms  KMS
	mu   sync.Mutex
	keys map[string][]byte // by the wrapped key, as JSON
}

// NewOpener returns an Opener.
func NewOpener(kms KMS) *Opener { return &Opener{kms: kms, keys: map[string][]byte{}} }

// Open returns the content of an object. The error is ErrCorrupt when the object is not the one that was sealed under
// the name.
func (o *Opener) Open(ctx context.Context, name string, object []byte) ([]byte, error) {
	e, sealed, err := parseEnvelope(name, object)
	if err != nil {
		return nil, err
	}
	key, err := o.key(ctx, e.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return open(key, name, sealed)
}

func (o *Opener) key(ctx context.Context, wrapped WrappedKey) ([]byte, error) {
	id, err := json.Marshal(wrapped)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if key, isKnown := o.keys[string(id)]; isKnown {
		return key, nil
	}
	key, err := o.kms.Unwrap(ctx, wrapped)
	if err == nil {
		o.keys[string(id)] = key
	}
	return key, err
}
