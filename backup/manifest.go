package backup

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"atoll.dev/envelope"
)

// Manifest describes a chain.
type Manifest struct {
	Plane string `json:"plane"`
	Chain string `json:"chain"`
	Order        // the zero value: an earlier version wrote the chain
	// Unordered names the chains that the plane had before this chain began, and whose generations nothing showed then.
	Unordered []string `json:"unordered,omitempty"`
	// Start is a sample taken before the snapshot: the log begins with the change after its revision.
	Start Sample `json:"start"`
	// Complete is a sample after etcd began the snapshot, which has no later change. The chain restores to any sample
	// of its log from this moment on.
	Complete Sample `json:"complete"`
	Size     int64  `json:"size"` // of the snapshot, uncompressed
	Parts    []Part `json:"parts"`
	Keys     *Part  `json:"keys,omitempty"` // nil: the plane's keys are not in the chain
	// Release is the release with which the plane was ready last when the snapshot was taken: a recovery goes back to it
	// when the plane does not become ready with another one. "": unknown, or an earlier version wrote the chain.
	Release string `json:"release,omitempty"`
	// Restores are the restore orders that the plane has executed: hosting never executes them again.
	Restores []string `json:"restores,omitempty"`
}

// Part is one object of a snapshot.
type Part struct {
	Size   int    `json:"size"`   // of the object
	SHA256 []byte `json:"sha256"` // of the object
}

// sealManifest returns the object "chain", whose name is given.
func sealManifest(name string, key envelope.DataKey, m Manifest) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return key.SealDescribed(name, body)
}

// errNotOpened is, together with ErrCorrupt, the error of a manifest that the keys do not open: it is damaged, or
// somebody without the keys has made it. A manifest whose key is missing here has another error, and so has one that
// opens and cannot be read: both may be good.
var errNotOpened = errors.New("its manifest cannot be opened")

// openManifest opens the object "chain".
func openManifest(ctx context.Context, kms envelope.KMS, name string, object []byte) (m Manifest,
	key envelope.DataKey, err error) {
	body, key, err := openDescribed(ctx, kms, name, object)
	if errors.Is(err, ErrCorrupt) {
		err = fmt.Errorf("%w: %w", errNotOpened, err)
	}
	if err != nil {
		return m, key, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, key, fmt.Errorf("%s: %w: %w", name, ErrCorrupt, err)
	}
	return m, key, nil
}

// openDescribed opens an object that envelope.DataKey.SealDescribed has made.
func openDescribed(ctx context.Context, kms envelope.KMS, name string, object []byte) (body []byte,
	key envelope.DataKey, err error) {
	wrapped, sealed, err := envelope.SplitDescribed(name, object)
	if err != nil {
		return nil, key, err
	}
	if key, err = envelope.OpenDataKey(ctx, kms, wrapped); err != nil {
		return nil, key, fmt.Errorf("%s: %w", name, err)
	}
	body, err = key.Open(name, sealed)
	return body, key, err
}

func sha256Of(object []byte) []byte {
	h := sha256.Sum256(object)
	return h[:]
}
