package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
	"atoll.dev/store/keyaudit"
)

// Kinds of documents of a KeyStore, in the database platform.
const (
	KindKeyPair store.Kind = "KeyPair"
	KindAccount store.Kind = "Account"
)

// StoreKinds returns the kinds with which the database of a KeyStore is opened.
// Every change is recorded with its actor.
func StoreKinds() []store.KindSpec {
	// The scope of each document is its account.
	owner := func(d store.Document) string { return d.Scope }
	specs := []store.KindSpec{{Kind: KindKeyPair, History: true, Owner: owner}}
	for _, kind := range append([]store.Kind{KindLink, KindLinkCode}, directoryKinds...) {
		specs = append(specs, store.KindSpec{Kind: kind, History: true, Owner: owner})
	}
	return append(specs, keyaudit.KindSpec(KindSealKey))
}

// Errors that callers decide on.
var (
	// ErrNotReady: the key pairs were never read.
	ErrNotReady = errors.New("key pairs not read yet")
	// ErrTooOld: the last read of the key pairs is older than TrustLimit.
	ErrTooOld = errors.New("key pairs were not read for too long")
	// ErrTooManyKeys: the principal has as many enabled key pairs as it may have.
	ErrTooManyKeys = errors.New("too many key pairs of the principal")
	// ErrInvalid: an account, a principal or an access key id is malformed.
	ErrInvalid = errors.New("malformed")
)

// KeyPair is a key pair without its secret.
type KeyPair struct {
	AccessKeyID string           `json:"accessKeyId"`
	Account     cluster.Account  `json:"accountId"`
	Principal   policy.Principal `json:"principalArn"`
	Disabled    bool             `json:"disabled"`
	CreatedAt   time.Time        `json:"createdAt"`
	// ExpiresAt is the end of temporary credentials; zero: never.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// LastUsedAt is about a minute late; zero: never used.
	LastUsedAt time.Time `json:"lastUsedAt,omitzero"`
}

// Bounds of the key pairs of one principal.
const (
	// MaxKeys bounds the enabled key pairs of a principal: the present one, and its successor.
	MaxKeys = 2
	// maxSessions bounds the temporary credentials of a principal, or of a role, that have not expired.
	maxSessions = 100
)

// Account is an account of the region. The principals of a privileged account are operators.
type Account struct {
	ID         cluster.Account `json:"accountId"`
	Privileged bool            `json:"privileged"`
}

// keyPairSpec is the spec of a KeyPair document. The id of the document is the
// access key id, its scope the account.
type keyPairSpec struct {
	Account      cluster.Account  `json:"accountId"`
	Principal    policy.Principal `json:"principalArn"`
	SealedSecret string           `json:"sealedSecret"`
	Disabled     bool             `json:"disabled"`
	// Expires is the end of temporary credentials, for lists; the sealed end decides.
	Expires *time.Time `json:"expiresAt,omitempty"`
}

// KeyStore stores key pairs, with sealed secrets, and accounts, and answers Lookup
// from memory.
//
// Run fills the memory and keeps it up to date from the database's feed: a change
// by any process arrives within milliseconds, and within a second when its
// notification is lost. While the database is down, Lookup answers by the last
// read, for TrustLimit, and then returns ErrTooOld; changes return
// store.ErrUnavailable. In a process that starts while the database is down, Lookup
// returns ErrNotReady until Run has read the key pairs once.
type KeyStore struct {
	store     *store.Store
	sealer    *Sealer
	cache     cache
	uses      keyUses
	directory *Directory
}

// directoryOf returns the Directory of a KeyStore.
func directoryOf(k *KeyStore) *Directory {
	d := &Directory{store: k.store, keys: k}
	d.cache.init()
	return d
}

// NewKeyStore returns a KeyStore on s, which must have been opened with StoreKinds.
// The caller closes s.
func NewKeyStore(s *store.Store, sealer *Sealer, o CacheObserver) *KeyStore {
	k := &KeyStore{store: s, sealer: sealer}
	k.cache.init(sealer, o)
	k.directory = directoryOf(k)
	return k
}

// Directory returns the accounts of the same database with their policies. Run keeps it up to date
// together with the key pairs.
func (k *KeyStore) Directory() *Directory { return k.directory }

var (
	_ Keys     = (*KeyStore)(nil)
	_ Validity = (*KeyStore)(nil)
	_ Accounts = (*KeyStore)(nil)
)

// IsPrivileged implements Accounts.
func (k *KeyStore) IsPrivileged(account cluster.Account) (bool, error) {
	return k.cache.isPrivileged(account)
}

// IsProvisioned implements Accounts.
func (k *KeyStore) IsProvisioned(account cluster.Account) bool {
	view, isFilled := k.directory.cache.view(account)
	return isFilled && view.isProvisioned
}

// OnInvalid implements Validity.
func (k *KeyStore) OnInvalid(caller Identity, end func(cause error)) (stop func()) {
	id := caller.AccessKeyID
	if caller.Evidence.Method == ByOIDC && caller.Evidence.Credential != "" {
		id = watchedLink(caller.Evidence.Credential, caller.Principal)
	}
	return k.cache.onInvalid(id, end)
}

// Lookup implements Keys.
func (k *KeyStore) Lookup(accessKeyID string) (Key, bool, error) { return k.cache.lookup(accessKeyID) }

// Run follows the store until ctx ends, and returns its cause.
func (k *KeyStore) Run(ctx context.Context) error {
	defer k.cache.followers.add()()
	defer k.directory.cache.followers.add()()
	defer k.cache.stopLapse()
	kinds := append([]store.Kind{KindKeyPair, KindLink, KindLinkCode}, directoryKinds...)
	o := store.FollowOptions{Kinds: kinds, UpToDate: k.cache.confirm}
	err := k.store.Follow(ctx, o, func(ctx context.Context, b store.Batch) error {
		k.directory.cache.apply(b) // first, so that an account is provisioned when its keys are known
		return k.cache.apply(ctx, b)
	})
	return fmt.Errorf("following key pairs: %w", err)
}

// Ready returns nil when callers can be verified, and an error when the key pairs
// were never read or were sealed with another key file.
func (k *KeyStore) Ready(context.Context) error { return k.cache.ready() }

// Create creates a key pair and returns it with its secret access key, which is
// not shown again. The account need not exist; without an account the key pair may
// do nothing. The key pair works in this process when Create returns.
func (k *KeyStore) Create(ctx context.Context, account cluster.Account, principal policy.Principal) (KeyPair,
	string, error) {
	if err := checkPrincipal(account, principal); err != nil {
		return KeyPair{}, "", err
	}
	for {
		id, secret, err := NewKeyPair()
		if err != nil {
			return KeyPair{}, "", err
		}
		pair, err := k.put(ctx, id, secret, keyPairSpec{Account: account, Principal: principal})
		if errors.Is(err, store.ErrExists) {
			continue // the same 80 bits were drawn before
		}
		return pair, secret, err
	}
}

// Import creates a key pair that NewKeyPair drew, so that its owner can store the
// secret before the region has it. The error is store.ErrExists when the id exists.
func (k *KeyStore) Import(ctx context.Context, id, secret string, account cluster.Account,
	principal policy.Principal) (KeyPair, error) {
	if err := checkKeyID(id); err != nil {
		return KeyPair{}, err
	}
	if strings.HasPrefix(id, sessionKeyPrefix) {
		return KeyPair{}, fmt.Errorf("access key id %s is of temporary credentials: %w", quoted(id), ErrInvalid)
	}
	if len(secret) < 40 {
		return KeyPair{}, fmt.Errorf("the secret access key has %d characters, at least 40 are needed: %w", len(secret),
			ErrInvalid)
	}
	if err := checkPrincipal(account, principal); err != nil {
		return KeyPair{}, err
	}
	return k.put(ctx, id, secret, keyPairSpec{Account: account, Principal: principal})
}

// put creates the document of a key pair, and seals the secret. The error is ErrTooManyKeys when the
// principal would have too many.
func (k *KeyStore) put(ctx context.Context, id, secret string, spec keyPairSpec) (KeyPair, error) {
	sealed, err := k.sealer.Seal(secret, Bound{id, spec.Account, spec.Principal})
	if err != nil {
		return KeyPair{}, err
	}
	spec.SealedSecret = sealed
	text, err := json.Marshal(spec)
	if err != nil {
		return KeyPair{}, fmt.Errorf("creating key pair: %w", err)
	}
	var doc store.Document
	err = k.store.Tx(ctx, func(tx *store.Tx) error {
		if err := lockPrincipal(ctx, tx, spec.Principal); err != nil {
			return err
		}
		var err error
		doc, err = tx.Create(ctx, store.Document{Kind: KindKeyPair, ID: id, Scope: string(spec.Account), Spec: text,
			Status: emptyObject})
		if err != nil {
			return err
		}
		return checkKeys(ctx, tx, spec)
	})
	if err != nil {
		return KeyPair{}, fmt.Errorf("creating key pair: %w", err)
	}
	k.cache.await(ctx, doc)
	return toKeyPair(doc)
}

// lockPrincipal makes other changes of the keys of a principal, or of the sessions of its role, wait until
// the transaction ends.
func lockPrincipal(ctx context.Context, tx *store.Tx, principal policy.Principal) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended($1, 0))`, "keys of "+holderOf(principal))
	return err
}

// holderOf returns the principal to which the bounds count a key: for a session its role, without the session's name;
// otherwise the principal itself.
func holderOf(principal policy.Principal) policy.Principal {
	return cmp.Or(policy.RoleOf(principal), principal)
}

// countKeysSQL counts the keys of a principal, and its sessions. For a session of a role, $3 is the prefix of the
// principals of all sessions of that role; otherwise it is "".
const countKeysSQL = `select count(*) filter (where spec->>'expiresAt' is null and spec->>'principalArn' = $2),
		count(*) filter (where (spec->>'expiresAt')::timestamptz > now())
	from document where kind = 'KeyPair' and scope = $1 and removed_at is null and not (spec->>'disabled')::boolean
		and case when $3 = '' then spec->>'principalArn' = $2 else starts_with(spec->>'principalArn', $3) end`

// checkKeys refuses when a principal has more enabled key pairs, or sessions, than it may have. The
// transaction holds the principal and has made the change.
func checkKeys(ctx context.Context, tx *store.Tx, of keyPairSpec) error {
	var keys, sessions int
	beginning := ""
	if policy.RoleOf(of.Principal) != "" {
		beginning = strings.TrimSuffix(string(of.Principal), sessionOf(of.Principal))
	}
	if err := tx.QueryRow(ctx, countKeysSQL, of.Account, of.Principal, beginning).Scan(&keys, &sessions); err != nil {
		return fmt.Errorf("counting the keys of %s: %w", of.Principal, err)
	}
	switch {
	case of.Expires == nil && keys > MaxKeys:
		return fmt.Errorf("%s has %d enabled key pairs; disable or delete one first, see `atoll key list`: %w",
			of.Principal, MaxKeys, ErrTooManyKeys)
	case of.Expires != nil && sessions > maxSessions:
		return fmt.Errorf("%s has %d sessions that have not expired; delete one first, see `atoll key list`: %w",
			holderOf(of.Principal), maxSessions, ErrTooManyKeys)
	}
	return nil
}

var emptyObject = json.RawMessage(`{}`)

func checkPrincipal(account cluster.Account, principal policy.Principal) error {
	m := principalPattern.FindStringSubmatch(string(principal))
	switch {
	case !accountPattern.MatchString(string(account)):
		return fmt.Errorf("account %s is not 12 digits: %w", quoted(account), ErrInvalid)
	case m == nil:
		return fmt.Errorf("principal %s is not like arn:aws:iam::%s:user/NAME: %w", quoted(principal), account,
			ErrInvalid)
	case cluster.Account(m[2]) != account:
		return fmt.Errorf("principal %s is not of account %s: %w", quoted(principal), account, ErrInvalid)
	}
	return nil
}

// NewKeyPair draws an access key id and a secret in AWS's forms.
func NewKeyPair() (id, secret string, err error) {
	var b [40]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", "", fmt.Errorf("drawing a key pair: %w", err)
	}
	return "AKIA" + base32.StdEncoding.EncodeToString(b[:10]), base64.StdEncoding.EncodeToString(b[10:]), nil
}

func checkKeyID(id string) error {
	if !keyIDPattern.MatchString(id) {
		return fmt.Errorf("access key id %s is not AKIA or ASIA and 16 letters and digits: %w", quoted(id), ErrInvalid)
	}
	return nil
}

// List returns all key pairs in the order of their access key ids.
func (k *KeyStore) List(ctx context.Context) ([]KeyPair, error) {
	var pairs []KeyPair
	uses, err := k.lastUses(ctx)
	if err != nil {
		return nil, err
	}
	err = k.forEach(ctx, KindKeyPair, func(d store.Document) error {
		pair, err := toKeyPair(d)
		pair.LastUsedAt = uses[d.ID]
		pairs = append(pairs, pair)
		return err
	})
	return pairs, err
}

func (k *KeyStore) forEach(ctx context.Context, kind store.Kind, f func(store.Document) error) error {
	for after := ""; ; {
		page, err := k.store.List(ctx, store.Query{Kind: kind, Limit: 500, After: after})
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			if err := f(d); err != nil {
				return fmt.Errorf("reading %s %s: %w", d.Kind, d.ID, err)
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

func toKeyPair(d store.Document) (KeyPair, error) {
	var spec keyPairSpec
	if err := json.Unmarshal(d.Spec, &spec); err != nil {
		return KeyPair{}, fmt.Errorf("reading key pair %s: %w", d.ID, err)
	}
	pair := KeyPair{
		AccessKeyID: d.ID,
		Account:     spec.Account,
		Principal:   spec.Principal,
		Disabled:    spec.Disabled,
		CreatedAt:   d.CreatedAt,
	}
	if spec.Expires != nil {
		pair.ExpiresAt = *spec.Expires
	}
	return pair, nil
}
