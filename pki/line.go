package pki

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrSuperseded means that somebody used a certificate at the CA after its holder had
// renewed it: there are two holders of one key.
var ErrSuperseded = errors.New("certificate was superseded")

// errUsedKey means that a request names a key that already has a certificate for another
// reason. An honest client makes a new key for each renewal.
var errUsedKey = errors.New("this key was certified before")

// errTooMany means that a line has as many certificates as it may have at present.
var errTooMany = errors.New("too many certificates were requested with this one")

const (
	// maxUnconfirmed bounds the keys that one key has requested and nobody has used. A client
	// whose answers are lost asks with the same key again, one of an earlier version with
	// another one each time.
	maxUnconfirmed = 200
	// maxLinePace bounds the certificates of a line within linePace; an honest client needs
	// one in days.
	maxLinePace = 30
	linePace    = time.Hour
)

// checkPace returns errTooMany when the holder of a certificate for the key by may not have
// one for the key next now: the CA keeps a record of each certificate until it expires, and
// a holder must not fill its disk. issued has the certificates of the name, which live for
// validity.
func (r *lineRecord) checkPace(by, next string, issued []issuedCert, validity time.Duration, now time.Time) error {
	unconfirmed := 0
	for _, k := range r.Keys {
		if k.Parent == by && k.Key != next && !k.Confirmed && !k.Abandoned {
			unconfirmed++
		}
	}
	line, recent := r.lineOf(by), 0
	since := now.Add(validity - min(linePace, validity/10)) // when a certificate ends that was issued that long ago
	for _, c := range issued {
		if c.Expires.After(since) && slices.Contains(line, c.Key) {
			recent++
		}
	}
	if unconfirmed >= maxUnconfirmed || recent >= maxLinePace {
		return errTooMany
	}
	return nil
}

// lineRecord is lines/NAME.json: the keys of a name, each with the key by which it was
// requested. A line is the keys that follow from one join token by renewals. An earlier
// atoll neither reads nor writes this file; a key without a record begins a line.
type lineRecord struct {
	Keys []lineKey `json:"keys"`
}

// A lineKey is a key that the CA has certified.
type lineKey struct {
	Key     string    `json:"key"`              // keyHash
	Parent  string    `json:"parent,omitempty"` // the key by which it was requested; "": by a join token
	Expires time.Time `json:"expires"`          // of its last certificate
	// Confirmed: its holder has used it at the CA, so the answer with the certificate arrived.
	Confirmed bool `json:"confirmed,omitempty"`
	// Abandoned: another key of the same parent was confirmed first.
	Abandoned bool `json:"abandoned,omitempty"`
	// Unrenewable: its certificate is for one command.
	Unrenewable bool `json:"unrenewable,omitempty"`
}

// find returns the entry of a key, or nil.
func (r *lineRecord) find(key string) *lineKey {
	i := slices.IndexFunc(r.Keys, func(k lineKey) bool { return k.Key == key })
	if i < 0 {
		return nil
	}
	return &r.Keys[i]
}

// isSuperseded reports whether a key was renewed: a key that it requested is confirmed,
// or another key was confirmed in its place.
func (r *lineRecord) isSuperseded(key string) bool {
	have := r.find(key)
	return have != nil && have.Abandoned ||
		slices.ContainsFunc(r.Keys, func(k lineKey) bool { return k.Parent == key && k.Confirmed })
}

// checkRenewal returns an error when the holder of a certificate for the key by may not
// have a certificate for the key next. A repeated request, whose answer was lost, has the
// same next and is no error.
func (r *lineRecord) checkRenewal(by, next string) error {
	have, known := r.find(by), r.find(next)
	switch {
	case have != nil && have.Unrenewable:
		return fmt.Errorf("%w: it was made for one command", errUsedKey)
	case have != nil && have.Abandoned:
		return ErrSuperseded
	case known != nil && known.Parent == by && !known.Abandoned, by == next && !r.isSuperseded(by):
		return nil
	case r.isSuperseded(by):
		return ErrSuperseded
	case known != nil:
		return errUsedKey
	}
	return nil
}

// confirm records that the holder of a key has used it, and returns the keys that are
// abandoned thereby: those that were requested by the same key and not used. expires is
// the end of the certificate.
func (r *lineRecord) confirm(key string, expires time.Time) (abandoned []string) {
	have := r.find(key)
	if have == nil {
		r.Keys = append(r.Keys, lineKey{Key: key, Expires: expires.UTC(), Confirmed: true})
		return nil
	}
	have.Confirmed = true
	if have.Parent == "" {
		return nil
	}
	for i := range r.Keys {
		other := &r.Keys[i]
		if other.Parent == have.Parent && !other.Confirmed && !other.Abandoned {
			other.Abandoned = true
			abandoned = append(abandoned, other.Key)
		}
	}
	return abandoned
}

// add records a certificate of a key that the key parent has requested; "" is a join token.
func (r *lineRecord) add(key, parent string, expires time.Time) {
	if have := r.find(key); have != nil {
		if expires.After(have.Expires) {
			have.Expires = expires.UTC()
		}
		return
	}
	r.Keys = append(r.Keys, lineKey{Key: key, Parent: parent, Expires: expires.UTC()})
}

// lineOf returns the keys of the line of a key: its first known ancestor with all keys that
// follow from it.
func (r *lineRecord) lineOf(key string) []string {
	first := key
	for seen := 0; seen <= len(r.Keys); seen++ {
		have := r.find(first)
		if have == nil || have.Parent == "" || r.find(have.Parent) == nil {
			break
		}
		first = have.Parent
	}
	line := []string{first}
	for i := 0; i < len(line); i++ {
		for _, k := range r.Keys {
			if k.Parent == line[i] && !slices.Contains(line, k.Key) {
				line = append(line, k.Key)
			}
		}
	}
	return line
}

// forget removes the keys whose certificates can neither be used nor renewed.
func (r *lineRecord) forget(now time.Time) {
	r.Keys = slices.DeleteFunc(r.Keys, func(k lineKey) bool {
		return now.After(k.Expires.Add(skew)) && k.Unrenewable || canBeForgotten(k.Expires, now)
	})
}
