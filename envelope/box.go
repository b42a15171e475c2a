package envelope

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
)

// envelope is the first line of a self-describing object: JSON with the wrapped key. The content follows, sealed with
// that key under the object's name.
type envelope struct {
	Format int        `json:"format"`
	Key    WrappedKey `json:"key"`
}

const envelopeFormat = 1

// SealDescribed encrypts content under a name, and returns it with its envelope: a self-describing object.
func (k DataKey) SealDescribed(name string, content []byte) ([]byte, error) {
	head, err := json.Marshal(envelope{Format: envelopeFormat, Key: k.wrapped})
	if err != nil {
		return nil, err
	}
	sealed, err := k.Seal(name, content)
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), sealed...), nil
}

// SplitDescribed returns the wrapped data key of a self-describing object, and the content that is sealed with it.
func SplitDescribed(name string, object []byte) (key WrappedKey, sealed []byte, err error) {
	var e envelope
	head, sealed, ok := bytes.Cut(object, []byte("\n"))
	if !ok || json.Unmarshal(head, &e) != nil {
		return key, nil, fmt.Errorf("%s: %w: it does not begin with its key", name, ErrCorrupt)
	}
	if e.Format != envelopeFormat {
		return key, nil, fmt.Errorf("%s: format %d is unknown; a newer Atoll wrote it", name, e.Format)
	}
	return e.Key, sealed, nil
}

// Box seals self-describing objects, all with one data key. An Opener opens them with nothing but the KMS.
// Many goroutines may use a Box.
type Box struct{ key DataKey }

// NewBox returns a Box with a new data key, which the KMS wraps.
func NewBox(ctx context.Context, kms KMS) (*Box, error) {
	key, err := NewDataKey(ctx, kms)
	if err != nil {
		return nil, err
	}
	return &Box{key}, nil
}

// KeyID names the key of the KMS that wraps the data key.
func (b *Box) KeyID() string { return b.key.wrapped.KeyID }

// Seal returns the self-describing object with the encrypted content. It cannot be opened under another name.
func (b *Box) Seal(name string, content []byte) ([]byte, error) {
	return b.key.SealDescribed(name, content)
}

// maxCachedKeys bounds the data keys in the memory of an Opener, which drops all when it is full. Each start of a
// process makes one Box, and so one data key.
const maxCachedKeys = 4096

// Opener opens objects of any Box whose key the KMS has. It calls the KMS once for each data key, and again after it
// has dropped the data key from memory. Many goroutines may use an Opener.
type Opener struct {
	kms  KMS
	mu   sync.Mutex         // never held during a call of the KMS
	keys map[string]DataKey // by the identifier and the ciphertext of the wrapped key
}

// NewOpener returns an Opener.
func NewOpener(kms KMS) *Opener { return &Opener{kms: kms, keys: map[string]DataKey{}} }

// Open returns the content of an object. The error is ErrCorrupt when the object is not the one that was sealed under
// the name.
func (o *Opener) Open(ctx context.Context, name string, object []byte) ([]byte, error) {
	wrapped, sealed, err := SplitDescribed(name, object)
	if err != nil {
		return nil, err
	}
	key, err := o.dataKey(ctx, wrapped)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return key.Open(name, sealed)
}

// dataKey returns the unwrapped data key from memory, or calls the KMS and keeps the result in memory. A call of the
// KMS never delays a caller whose data key is in memory.
func (o *Opener) dataKey(ctx context.Context, wrapped WrappedKey) (DataKey, error) {
	o.mu.Lock()
	key, isKnown := o.keys[wrapped.id()]
	o.mu.Unlock()
	if isKnown {
		return key, nil
	}
	key, err := OpenDataKey(ctx, o.kms, wrapped)
	if err != nil {
		return key, err
	}
	o.cache(key)
	return key, nil
}

// Remember keeps the data key of a Box in memory, so that the Opener opens the objects of the Box without the KMS.
func (o *Opener) Remember(b *Box) { o.cache(b.key) }

// cache keeps a data key in memory.
func (o *Opener) cache(key DataKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.keys) >= maxCachedKeys {
		clear(o.keys)
	}
	o.keys[key.wrapped.id()] = key
}

// id identifies a wrapped key.
func (w WrappedKey) id() string { return w.KeyID + "\x00" + string(w.Ciphertext) }
