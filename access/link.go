package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// Kinds of documents of links, in the database platform. The scope of each is its account.
const (
	KindLink     store.Kind = "Link"     // of an external identity to a principal
	KindLinkCode store.Kind = "LinkCode" // links one identity, once
)

// Bounds of links.
const (
	maxLinks     = 1000 // of an account
	maxLinkCodes = 100  // of an account, that have not expired
	maxLinkValid = 7 * 24 * time.Hour
)

// LinkCodeHeader has the code of a request that links the identity of its token.
const LinkCodeHeader = "X-Atoll-Link-Code"

// ActionCreateLink is taken by an identity that a code links; nothing else decides about it.
const ActionCreateLink Action = "CreateLink"

// redeemPaths are the paths on which a link code counts.
var redeemPaths = []string{"/api/v0/links", "/prod/api/v0/links"}

// Errors of links that callers decide on.
var (
	// ErrLinked: the external identity is linked already, to an account of the region.
	ErrLinked = errors.New("the identity is linked already")
	// ErrInvalidLinkCode: the code was used, has expired, or never existed.
	ErrInvalidLinkCode = errors.New(invalidLinkCode)
)

const invalidLinkCode = "the link code was used, has expired, or is none; an administrator of your account makes a " +
	"new one with: atoll link create"

// Link connects an external identity to a principal.
type Link struct {
	ID              string
	Account         cluster.Account
	Principal       policy.Principal
	Issuer, Subject string
	CreatedAt       time.Time
	Privileged      bool // its account is; for verification
}

// LinkCode describes a code without the code itself: the link that it makes, and until when.
type LinkCode struct {
	ID         string // of its document
	Account    cluster.Account
	Principal  policy.Principal
	Admin      bool // the principal becomes an administrator of its account
	Expires    time.Time
	CreatedBy  string // ARN
	Privileged bool   // its account is; for verification
}

// Links finds links for an OIDC, from memory. The errors are ErrNotReady and ErrTooOld. Several goroutines
// may call the methods.
type Links interface {
	Link(issuer, subject string) (link Link, known bool, err error)
	LinkCode(code string) (found LinkCode, known bool, err error)
}

var _ Links = (*KeyStore)(nil)

// Link implements Links.
func (k *KeyStore) Link(issuer, subject string) (Link, bool, error) {
	return k.cache.link(issuer, subject)
}

// LinkCode implements Links.
func (k *KeyStore) LinkCode(code string) (LinkCode, bool, error) { return k.cache.linkCode(code) }

// linkCodeOf returns the code of a request that redeems one; "" for other requests. A code elsewhere is an
// error: its sender means something else than the region would do.
func linkCodeOf(r *http.Request) (string, error) {
	var codes []string
	for name, values := range r.Header {
		if canonicalSpelling(name) == LinkCodeHeader {
			codes = append(codes, values...)
		}
	}
	m, ok := messageOf(r)
	isRedeemed := ok && r.Method == http.MethodPost && slices.Contains(redeemPaths, m.path)
	switch {
	case len(codes) == 0:
		return "", nil
	case len(codes) > 1 || !isRedeemed:
		return "", refuse(AmbiguousIdentity, "one header %s counts, with POST %s", LinkCodeHeader, redeemPaths[0])
	case !linkCodePattern.MatchString(codes[0]):
		return "", refuse(InvalidLinkCode, "%s", invalidLinkCode)
	}
	return codes[0], nil
}

var (
	linkCodePattern      = regexp.MustCompile(`^[A-Z2-7]{26}$`)
	linkPrincipalPattern = regexp.MustCompile(`^arn:[a-z-]+:iam::[0-9]{12}:(root|user/[A-Za-z0-9+=,.@_/-]+)$`)
)

// linkID returns the id of the link of an external identity, so that an identity has one link at most.
func linkID(issuer, subject string) string { return "link-" + shortHash(issuer+"\x00"+subject) }

// linkCodeID returns the id of the document of a code, from which nobody learns the code.
func linkCodeID(code string) string { return "code-" + shortHash("atoll link code\x00"+code) }

func shortHash(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:20])
}

// linkSpec is the spec of a Link document. The sealed text has the identity again, and decides, so that a
// writer of the database cannot link an identity.
type linkSpec struct {
	Account   cluster.Account  `json:"accountId"`
	Principal policy.Principal `json:"principalArn"`
	Issuer    string           `json:"issuer"`
	Subject   string           `json:"subject"`
	Sealed    string           `json:"sealed"`
	CreatedBy string           `json:"createdBy"`
}

type sealedLink struct{ Issuer, Subject string }

// linkCodeSpec is the spec of a LinkCode document. The sealed text decides.
type linkCodeSpec struct {
	Account   cluster.Account  `json:"accountId"`
	Principal policy.Principal `json:"principalArn"`
	Admin     bool             `json:"admin"`
	Expires   time.Time        `json:"expiresAt"`
	Sealed    string           `json:"sealed"`
	CreatedBy string           `json:"createdBy"`
}

type sealedLinkCode struct {
	Admin   bool
	Expires time.Time
}

// CreateLinkCode makes a code that links one external identity to a principal of an account, once. It
// returns the code, which is not shown again. The principal is the root or a user. The error is
// store.ErrNotFound when the account is not provisioned, and ErrTooMany.
func (d *Directory) CreateLinkCode(ctx context.Context, c LinkCode) (string, error) {
	if err := checkPrincipal(c.Account, c.Principal); err != nil {
		return "", err
	}
	valid := time.Until(c.Expires)
	switch {
	case !linkPrincipalPattern.MatchString(string(c.Principal)):
		return "", fmt.Errorf("a person is linked to a user or the root of an account, not to %s: %w", quoted(c.Principal),
			ErrInvalid)
	case valid < time.Second || valid > maxLinkValid+time.Minute:
		return "", fmt.Errorf("a link code is valid for 1m to %s: %w", maxLinkValid, ErrInvalid)
	}
	code := rand.Text()
	id, expires := linkCodeID(code), c.Expires.UTC().Truncate(time.Second)
	sealed, err := d.keys.sealer.Seal(string(toJSON(sealedLinkCode{c.Admin, expires})), Bound{id, c.Account, c.Principal})
	if err != nil {
		return "", err
	}
	doc, err := d.inAccount(ctx, c.Account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.Create(ctx, document(KindLinkCode, id, c.Account, "", linkCodeSpec{c.Account, c.Principal, c.Admin,
			expires, sealed, store.ActorFrom(ctx).Principal}))
		if err == nil {
			err = checkLinkCodes(ctx, tx, c.Account)
		}
		return doc, err
	})
	if err != nil {
		return "", fmt.Errorf("creating a link code: %w", err)
	}
	d.keys.cache.awaitState(ctx, func(s *cached) bool { return s.codes[doc.ID].version >= doc.Version })
	return code, nil
}

// checkLinkCodes refuses when an account has more codes than it may have. The transaction has made one.
func checkLinkCodes(ctx context.Context, tx *store.Tx, account cluster.Account) error {
	var n int
	err := tx.QueryRow(ctx, `select count(*) from document where kind = 'LinkCode' and scope = $1 and removed_at is null
		and (spec->>'expiresAt')::timestamptz > now()`, account).Scan(&n)
	if err == nil && n > maxLinkCodes {
		err = fmt.Errorf("an account has at most %d link codes that were not used: %w", maxLinkCodes, ErrTooMany)
	}
	return err
}

// RedeemLink links the external identity of a caller by the code of its request, which is used up. The
// error is ErrInvalidLinkCode, or ErrLinked. The link works in this process when RedeemLink returns.
func (d *Directory) RedeemLink(ctx context.Context, caller Identity) (Link, error) {
	of := caller.Evidence
	switch {
	case of.Method != ByOIDC || caller.linkCode == "":
		return Link{}, ErrInvalidLinkCode
	case of.Credential != "":
		return Link{}, ErrLinked
	}
	account := caller.Account
	spec := linkSpec{Account: account, Principal: caller.Principal, Issuer: of.Issuer, Subject: of.Subject,
		CreatedBy: string(caller.Principal)}
	id := linkID(of.Issuer, of.Subject)
	var err error
	if spec.Sealed, err = d.keys.sealer.Seal(string(toJSON(sealedLink{of.Issuer, of.Subject})),
		Bound{id, account, caller.Principal}); err != nil {
		return Link{}, err
	}
	var admin store.Document
	doc, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		code, err := d.useLinkCode(ctx, tx, caller)
		if err == nil && code.Admin {
			admin, err = putAdmin(ctx, tx, account, caller.Principal)
		}
		if err != nil {
			return store.Document{}, err
		}
		doc, err := tx.Create(ctx, document(KindLink, id, account, "", spec))
		if errors.Is(err, store.ErrExists) {
			err = ErrLinked
		}
		if err == nil {
			err = checkCount(ctx, tx, account, KindLink, maxLinks)
		}
		return doc, err
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // the account was deleted
		return Link{}, ErrInvalidLinkCode
	case err != nil:
		return Link{}, fmt.Errorf("linking an identity: %w", err)
	}
	d.keys.cache.awaitState(ctx, func(s *cached) bool { return s.links[doc.ID].version >= doc.Version })
	if admin.Version > 0 {
		d.cache.await(ctx, KindAdmin, account, admin.ID, admin.Version)
	}
	return toLink(doc)
}

// useLinkCode removes the document of the caller's link code, and returns the link code. It reads the document again
// under a lock, because another request may have used the code.
func (d *Directory) useLinkCode(ctx context.Context, tx *store.Tx, caller Identity) (LinkCode, error) {
	doc, err := tx.GetForUpdate(ctx, KindLinkCode, linkCodeID(caller.linkCode))
	if errors.Is(err, store.ErrNotFound) {
		return LinkCode{}, ErrInvalidLinkCode
	}
	if err != nil {
		return LinkCode{}, err
	}
	code, err := openLinkCode(d.keys.sealer, doc)
	if err != nil || code.Account != caller.Account || code.Principal != caller.Principal ||
		!time.Now().Before(code.Expires) {
		return LinkCode{}, ErrInvalidLinkCode
	}
	return code, tx.Remove(ctx, KindLinkCode, doc.ID, 0)
}

// putAdmin makes a principal an administrator, unless it is one. The document is empty then.
func putAdmin(ctx context.Context, tx *store.Tx, account cluster.Account, principal policy.Principal) (store.Document,
	error) {
	if _, err := tx.Get(ctx, KindAdmin, string(principal)); !errors.Is(err, store.ErrNotFound) {
		return store.Document{}, err
	}
	if err := countAdmins(ctx, tx, account, +1); err != nil {
		return store.Document{}, err
	}
	doc, err := tx.Create(ctx, document(KindAdmin, string(principal), account, "",
		adminSpec{CreatedBy: string(principal)}))
	if err == nil {
		err = checkCount(ctx, tx, account, KindAdmin, maxAdmins)
	}
	return doc, err
}

// AccountLinks returns a part of the links of an account, by id, and how many it has.
func (d *Directory) AccountLinks(ctx context.Context, account cluster.Account, w Window) ([]Link, int, error) {
	return listIn(ctx, d, KindLink, account, w, toLink)
}

// DeleteLink removes a link: the identity is nobody in the region any more, in this process when DeleteLink
// returns, in others within a second. Open watches of the identity end. The same transaction removes the link codes
// that name the link's principal or that the principal created, because the person could link himself again by one.
func (d *Directory) DeleteLink(ctx context.Context, account cluster.Account, id string) error {
	_, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.GetForUpdate(ctx, KindLink, id)
		if err == nil {
			err = checkScope(doc, account)
		}
		if err != nil {
			return doc, err
		}
		link, err := toLink(doc)
		if err == nil {
			err = removeLinkCodesOf(ctx, tx, account, link.Principal)
		}
		if err != nil {
			return doc, err
		}
		return removed(doc), tx.Remove(ctx, KindLink, id, 0)
	})
	if err != nil {
		return err
	}
	d.keys.cache.awaitState(ctx, func(s *cached) bool { _, known := s.links[id]; return !known })
	return nil
}

func toLink(d store.Document) (Link, error) {
	var spec linkSpec
	err := json.Unmarshal(d.Spec, &spec)
	return Link{ID: d.ID, Account: spec.Account, Principal: spec.Principal, Issuer: spec.Issuer, Subject: spec.Subject,
		CreatedAt: d.CreatedAt}, err
}

// openLink returns the link of a document, whose sealed text must be that of the link.
func openLink(sealer *Sealer, d store.Document) (Link, error) {
	link, err := toLink(d)
	var spec linkSpec
	if err = errors.Join(err, json.Unmarshal(d.Spec, &spec)); err != nil {
		return Link{}, err
	}
	opened, err := sealer.Open(spec.Sealed, Bound{d.ID, spec.Account, spec.Principal})
	if err != nil {
		return Link{}, err
	}
	var of sealedLink
	if json.Unmarshal([]byte(opened), &of) != nil || linkID(of.Issuer, of.Subject) != d.ID {
		return Link{}, fmt.Errorf("opening the link %s: %w", d.ID, ErrSealBroken)
	}
	link.Issuer, link.Subject = of.Issuer, of.Subject
	return link, nil
}

// readLinkCode reads the description of a code from the spec of its document. A writer of the database can change it.
func readLinkCode(d store.Document) (LinkCode, error) {
	var spec linkCodeSpec
	err := json.Unmarshal(d.Spec, &spec)
	return LinkCode{ID: d.ID, Account: spec.Account, Principal: spec.Principal, Admin: spec.Admin, Expires: spec.Expires,
		CreatedBy: spec.CreatedBy}, err
}

// openLinkCode reads the description of a code from the sealed text of its document.
func openLinkCode(sealer *Sealer, d store.Document) (LinkCode, error) {
	code, err := readLinkCode(d)
	var spec linkCodeSpec
	if err = errors.Join(err, json.Unmarshal(d.Spec, &spec)); err != nil {
		return LinkCode{}, err
	}
	opened, err := sealer.Open(spec.Sealed, Bound{d.ID, spec.Account, spec.Principal})
	if err != nil {
		return LinkCode{}, err
	}
	var of sealedLinkCode
	if json.Unmarshal([]byte(opened), &of) != nil {
		return LinkCode{}, fmt.Errorf("opening the link code %s: %w", d.ID, ErrSealBroken)
	}
	code.Admin, code.Expires = of.Admin, of.Expires
	return code, nil
}
