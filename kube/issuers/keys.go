package issuers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"gopkg.in/go-jose/go-jose.v2"
)

// maxKeys bounds the keys of an issuer: each may be tried for a token that names none.
const maxKeys = 50

// keySet verifies signatures with the public keys of an issuer. The zero value has no keys.
type keySet struct{ keys []jose.JSONWebKey }

// newKeySet decodes a JSON Web Key Set. It ignores keys that sign nothing, and keys that are secret.
func newKeySet(data json.RawMessage) (keySet, error) {
	if len(data) == 0 || string(data) == "null" {
		return keySet{}, nil
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return keySet{}, fmt.Errorf("the keys of the issuer: %w", err)
	}
	var set keySet
	for _, r := range raw.Keys {
		var key jose.JSONWebKey
		// One key of a kind that this program does not know leaves the others as they are.
		if json.Unmarshal(r, &key) != nil || !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if set.keys = append(set.keys, key); len(set.keys) > maxKeys {
			return keySet{}, fmt.Errorf("the issuer has more than %d keys", maxKeys)
		}
	}
	return set, nil
}

// VerifySignature returns the payload of a token that one of the keys has signed. The caller has checked the algorithm.
func (s keySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	parsed, err := jose.ParseSigned(token)
	if err != nil {
		return nil, fmt.Errorf("the token: %w", err)
	}
	if len(parsed.Signatures) != 1 {
		return nil, errors.New("the token has not one signature")
	}
	header := parsed.Signatures[0].Header
	for _, key := range s.keys {
		if header.KeyID != "" && key.KeyID != header.KeyID || key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if payload, err := parsed.Verify(&key); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("no key of the issuer has signed the token")
}
