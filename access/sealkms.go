package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
)

// A wrapped line of a key file has its key as a KMS plugin has wrapped it: the header, the id of the key, the endpoint
// of the plugin, and the wrapped key as JSON in base64. So the file names the plugin that
// unwraps the key, and no command needs a flag.
const wrappedKeyHeader = "atoll wrapped key v1: "

// unwrapTimeout bounds a request to a KMS plugin.
const unwrapTimeout = 5 * time.Second

// wrappedSealKey is the content of a line of the key file whose key a KMS plugin has wrapped.
type wrappedSealKey struct {
	endpoint string // of the KMS plugin
	key      envelope.WrappedKey
}

// parseWrappedKey returns the key of a wrapped line, which cannot seal or open before unwrapSealKey.
func parseWrappedKey(line string) (k sealKey, ok bool) {
	text, ok := strings.CutPrefix(line, wrappedKeyHeader)
	fields := strings.Fields(text)
	if !ok || len(fields) != 3 || len(fields[0]) != sealKeyIDSize {
		return k, false
	}
	content, err := base64.StdEncoding.DecodeString(fields[2])
	w := &wrappedSealKey{endpoint: fields[1]}
	if err != nil || json.Unmarshal(content, &w.key) != nil {
		return k, false
	}
	return sealKey{id: fields[0], line: line, wrapped: w}, true
}

// wrapSealKey returns a new key, wrapped by the KMS plugin at an endpoint.
func wrapSealKey(ctx context.Context, endpoint string) (k sealKey, err error) {
	plugin, err := kms.Open(ctx, endpoint)
	if err != nil {
		return k, err
	}
	defer plugin.Close()
	plain := newSealKey()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(plain.line, keyFileHeader))
	if err != nil {
		return k, err
	}
	wrapped, err := plugin.Wrap(ctx, key)
	if err != nil {
		return k, err
	}
	content, err := json.Marshal(wrapped)
	if err != nil {
		return k, err
	}
	line := wrappedKeyHeader + plain.id + " " + endpoint + " " + base64.StdEncoding.EncodeToString(content)
	return sealKey{plain.id, line, plain.aead, &wrappedSealKey{endpoint, wrapped}}, nil
}

// unwrapSealKey asks the KMS plugin of a wrapped line for its key.
func unwrapSealKey(k sealKey) (sealKey, error) {
	ctx, cancel := context.WithTimeout(context.Background(), unwrapTimeout)
	defer cancel()
	plugin, err := kms.Open(ctx, k.wrapped.endpoint)
	if err != nil {
		return k, fmt.Errorf("key %s: %w", k.id, err)
	}
	defer plugin.Close()
	key, err := plugin.Unwrap(ctx, k.wrapped.key)
	if err != nil {
		return k, fmt.Errorf("key %s: %w", k.id, err)
	}
	plain, ok := parseSealKey(keyFileHeader + base64.StdEncoding.EncodeToString(key))
	if !ok || plain.id != k.id {
		return k, fmt.Errorf("key %s: %w: KMS plugin %s returns another key", k.id, envelope.ErrWrongKey, k.wrapped.endpoint)
	}
	k.aead = plain.aead
	return k, nil
}

// withSealKeys sets the AEAD of each key: that of a known key with the same line of the key file, or else the one that
// the key's plugin unwraps. The error is that of the first key that its plugin does not unwrap.
func withSealKeys(keys, known []sealKey) ([]sealKey, error) {
	for i, k := range keys {
		if k.aead != nil {
			continue
		}
		for _, have := range known {
			if have.line == k.line {
				keys[i].aead = have.aead
			}
		}
		if keys[i].aead != nil {
			continue
		}
		var err error
		if keys[i], err = unwrapSealKey(k); err != nil {
			return nil, err
		}
	}
	return keys, nil
}
