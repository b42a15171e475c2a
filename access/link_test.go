package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

const linkIssuer = "https://issuer.example"

// personWith is an external identity that redeems a code.
func personWith(subject, code string) Identity {
	return Identity{Account: account, Principal: oidcUser, linkCode: code,
		Evidence: Evidence{Method: ByOIDC, Issuer: linkIssuer, Subject: subject}}
}

// startLinks starts the keys of a region with one account.
func startLinks(t *testing.T) (*store.Store, *KeyStore, string) {
	t.Helper()
	s, file := openStore(t, pgtest.DSN(t), store.Hooks{}), filepath.Join(t.TempDir(), "key")
	k := runKeys(t, s, file, CacheObserver{})
	if err := k.PutAccount(t.Context(), Account{ID: account}); err != nil {
		t.Fatal(err)
	}
	return s, k, file
}

func newCode(t *testing.T, k *KeyStore, c LinkCode) string {
	t.Helper()
	if c.Expires.IsZero() {
		c.Expires = time.Now().Add(time.Hour)
	}
	c.Account = account
	code, err := k.Directory().CreateLinkCode(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// A code links one identity, once, however many redeem it at the same time. The identity has the principal
// of the code then, in other processes, too, until the link is removed.
func TestALinkCodeLinksOneIdentityOnce(t *testing.T) {
	s, k, file := startLinks(t)
	other := runKeys(t, s, file, CacheObserver{})
	code := newCode(t, k, LinkCode{Principal: oidcUser, Admin: true})
	found, known, err := k.LinkCode(code)
	if err != nil || !known || found.Principal != oidcUser || found.Account != account || !found.Admin {
		t.Fatalf("%+v, %t, %v", found, known, err)
	}
	var redeeming sync.WaitGroup
	var mu sync.Mutex
	var linked []Link
	for i := range 8 {
		redeeming.Go(func() {
			l, err := k.Directory().RedeemLink(t.Context(), personWith(fmt.Sprint("person-", i), code))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				linked = append(linked, l)
			case !errors.Is(err, ErrInvalidLinkCode):
				t.Error(err)
			}
		})
	}
	redeeming.Wait()
	if len(linked) != 1 {
		t.Fatalf("the code linked %+v", linked)
	}
	link := linked[0]
	if got, known, err := k.Link(linkIssuer, link.Subject); err != nil || !known || got.Principal != oidcUser ||
		got.ID != link.ID {
		t.Errorf("%+v, %t, %v", got, known, err)
	}
	if _, known, _ := k.Link("https://other.example", link.Subject); known {
		t.Error("the same subject of another issuer is linked")
	}
	if !k.Directory().Caller(account, oidcUser).IsAdmin {
		t.Error("the principal is no administrator")
	}
	eventually(t, other, "the link", func() bool { _, known, _ := other.Link(linkIssuer, link.Subject); return known })

	again := newCode(t, k, LinkCode{Principal: oidcUser})
	if _, err := k.Directory().RedeemLink(t.Context(), personWith(link.Subject, again)); !errors.Is(err, ErrLinked) {
		t.Errorf("a second link of one identity: %v", err)
	}
	if _, known, _ := k.LinkCode(again); !known {
		t.Error("the refused request used the code up")
	}

	ended := make(chan error, 1)
	foreign := newCode(t, k, LinkCode{Principal: "arn:aws:iam::123456789012:root"}) // created by nobody, for another one
	caller := personWith(link.Subject, "")
	caller.Evidence.Credential = link.ID
	defer other.OnInvalid(caller, func(cause error) { ended <- cause })()
	if len(ended) > 0 {
		t.Fatalf("the watch of a linked identity ends: %v", <-ended)
	}
	if err := k.Directory().DeleteLink(t.Context(), account, link.ID); err != nil {
		t.Fatal(err)
	}
	if _, known, _ := k.Link(linkIssuer, link.Subject); known {
		t.Error("the link is there after its removal")
	}
	if _, err := k.Directory().RedeemLink(t.Context(), personWith(link.Subject, again)); !errors.Is(err,
		ErrInvalidLinkCode) {
		t.Errorf("a code of the principal whose link was removed: %v", err)
	}
	if _, known, _ := k.LinkCode(foreign); !known {
		t.Error("the removal of a link removed the code of another principal")
	}
	if cause := <-ended; codeOf(cause) != NotLinked {
		t.Errorf("the watch ended with %v", cause)
	}
	if err := k.Directory().DeleteLink(t.Context(), account, link.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the second removal: %v", err)
	}
}

// Codes that are expired, of another account or principal, or none, link nobody.
func TestOnlyAGoodCodeLinks(t *testing.T) {
	s, k, _ := startLinks(t)
	d, code := k.Directory(), newCode(t, k, LinkCode{Principal: oidcUser})
	otherAccount := personWith("x", code)
	otherAccount.Account = "999999999999"
	otherUser := personWith("x", code)
	otherUser.Principal = "arn:aws:iam::123456789012:root"
	signed := personWith("x", code)
	signed.Evidence.Method = BySignature
	for name, caller := range map[string]Identity{"another account": otherAccount, "another principal": otherUser,
		"a signature": signed, "no code": personWith("x", ""), "an unknown code": personWith("x", strings.Repeat("A", 26))} {
		if l, err := d.RedeemLink(t.Context(), caller); !errors.Is(err, ErrInvalidLinkCode) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	old := strings.Repeat("Z", 26)
	id, past := linkCodeID(old), time.Now().Add(-time.Second)
	sealed, err := k.sealer.Seal(string(toJSON(sealedLinkCode{Expires: past})), Bound{id, account, oidcUser})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), document(KindLinkCode, id, account, "", linkCodeSpec{Account: account,
		Principal: oidcUser, Expires: time.Now().Add(time.Hour), Sealed: sealed})); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RedeemLink(t.Context(), personWith("x", old)); !errors.Is(err, ErrInvalidLinkCode) {
		t.Errorf("an expired code: %v", err)
	}
	soon := time.Now().Add(time.Hour)
	for name, bad := range map[string]LinkCode{
		"a role":          {Account: account, Principal: "arn:aws:iam::123456789012:role/x", Expires: soon},
		"a session":       {Account: account, Principal: gatewayCaller, Expires: time.Now().Add(time.Hour)},
		"another account": {Account: "999999999999", Principal: oidcUser, Expires: time.Now().Add(time.Hour)},
		"a month":         {Account: account, Principal: oidcUser, Expires: time.Now().Add(30 * 24 * time.Hour)},
		"the past":        {Account: account, Principal: oidcUser, Expires: time.Now().Add(-time.Hour)},
	} {
		if _, err := d.CreateLinkCode(t.Context(), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	unprovisioned := LinkCode{Account: "999999999999", Principal: "arn:aws:iam::999999999999:root",
		Expires: time.Now().Add(time.Hour)}
	if _, err := d.CreateLinkCode(t.Context(), unprovisioned); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an account that is not provisioned: %v", err)
	}
}

// A writer of the database without the key file links nobody: neither by a changed link nor by a code.
func TestLinksAreSealed(t *testing.T) {
	s, k, _ := startLinks(t)
	link, err := k.Directory().RedeemLink(t.Context(), personWith("ann", newCode(t, k, LinkCode{Principal: oidcUser})))
	if err != nil {
		t.Fatal(err)
	}
	code := newCode(t, k, LinkCode{Principal: oidcUser, Expires: time.Now().Add(time.Hour)})
	const root = "arn:aws:iam::123456789012:root"
	replace := func(kind store.Kind, id string) {
		t.Helper()
		_, _, err := s.Update(t.Context(), kind, id, 0, func(d *store.Document) error {
			var spec map[string]any
			if err := json.Unmarshal(d.Spec, &spec); err != nil {
				return err
			}
			spec["principalArn"] = root
			d.Spec = toJSON(spec)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The document of the link becomes one of another identity, under that identity's id.
	stolen, err := s.Get(t.Context(), KindLink, link.ID)
	if err != nil {
		t.Fatal(err)
	}
	stolen.ID, stolen.Version = linkID(linkIssuer, "mallory"), 0
	var spec linkSpec
	if err := json.Unmarshal(stolen.Spec, &spec); err != nil {
		t.Fatal(err)
	}
	spec.Subject = "mallory"
	stolen.Spec = toJSON(spec)
	if _, err := s.Create(t.Context(), stolen); err != nil {
		t.Fatal(err)
	}
	replace(KindLink, link.ID)
	replace(KindLinkCode, linkCodeID(code))
	eventually(t, k, "the changed documents", func() bool {
		_, isLinked, _ := k.Link(linkIssuer, "ann")
		_, isCode, _ := k.LinkCode(code)
		k.cache.mu.RLock()
		defer k.cache.mu.RUnlock()
		_, hasStolen := k.cache.state.links[stolen.ID]
		return !isLinked && !isCode && hasStolen
	})
	if l, known, _ := k.Link(linkIssuer, "mallory"); known {
		t.Errorf("a copied link is one of %+v", l)
	}
}

// The account's deletion removes its links and codes, so that a new account with its id begins without them.
func TestADeletedAccountHasNoLinks(t *testing.T) {
	_, k, _ := startLinks(t)
	d, code := k.Directory(), newCode(t, k, LinkCode{Principal: oidcUser})
	if _, err := d.RedeemLink(t.Context(), personWith("ann", newCode(t, k, LinkCode{Principal: oidcUser}))); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteAccount(t.Context(), account, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RedeemLink(t.Context(), personWith("bob", code)); !errors.Is(err, ErrInvalidLinkCode) {
		t.Errorf("a code of a deleted account: %v", err)
	}
	if _, err := d.CreateAccount(t.Context(), Account{ID: account}); err != nil {
		t.Fatal(err)
	}
	if links, n, err := d.AccountLinks(t.Context(), account, Window{Limit: 10}); err != nil || n != 0 {
		t.Errorf("the new account has %v, %v", links, err)
	}
	eventually(t, k, "no link", func() bool { _, known, _ := k.Link(linkIssuer, "ann"); return !known })
	eventually(t, k, "no code", func() bool { _, known, _ := k.LinkCode(code); return !known })
}
