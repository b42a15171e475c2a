package access

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// An administrator sees the codes that nobody has redeemed and withdraws one, of his own account only. The list has the
// sealed values, and no code.
func TestALinkCodeIsListedAndWithdrawn(t *testing.T) {
	s, k, _ := startLinks(t)
	d, expires := k.Directory(), time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	ctx := store.WithActor(t.Context(), store.Actor{Principal: gatewayCaller})
	code, err := d.CreateLinkCode(ctx, LinkCode{Account: account, Principal: oidcUser, Admin: true, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	want := LinkCode{ID: linkCodeID(code), Account: account, Principal: oidcUser, Admin: true, Expires: expires,
		CreatedBy: gatewayCaller}
	check := func(want ...LinkCode) {
		t.Helper()
		codes, n, err := d.AccountLinkCodes(t.Context(), account, Window{Limit: 10})
		if err != nil || n != len(want) || !slices.Equal(codes, want) {
			t.Errorf("the list has %d codes, %+v, %v, want %+v", n, codes, err, want)
		}
	}
	check(want)
	_, _, err = s.Update(t.Context(), KindLinkCode, want.ID, 0, func(d *store.Document) error {
		var spec map[string]any
		if err := json.Unmarshal(d.Spec, &spec); err != nil {
			return err
		}
		if strings.Contains(string(d.Spec), code) || spec["admin"] != true {
			t.Errorf("the document is %s", d.Spec)
		}
		spec["admin"] = false
		d.Spec = toJSON(spec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check(want)
	const other = "999999999999"
	if _, err := d.CreateAccount(t.Context(), Account{ID: other}); err != nil {
		t.Fatal(err)
	}
	if codes, n, err := d.AccountLinkCodes(t.Context(), other, Window{Limit: 10}); err != nil || n != 0 {
		t.Errorf("another account has %+v, %v", codes, err)
	}
	if err := d.DeleteLinkCode(t.Context(), other, want.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another account withdraws the code: %v", err)
	}
	check(want)
	if err := d.DeleteLinkCode(t.Context(), account, want.ID); err != nil {
		t.Fatal(err)
	}
	check()
	if _, known, _ := k.LinkCode(code); known {
		t.Error("the code is known after its withdrawal")
	}
	if _, err := d.RedeemLink(t.Context(), personWith("ann", code)); !errors.Is(err, ErrInvalidLinkCode) {
		t.Errorf("the withdrawn code: %v", err)
	}
	if err := d.DeleteLinkCode(t.Context(), account, want.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the second withdrawal: %v", err)
	}
}

// A dismissed administrator keeps no code: neither one that names him nor one that he, or a session of the role,
// created, in his account or in another one.
func TestADismissedAdministratorHasNoLinkCodes(t *testing.T) {
	const (
		other   = "999999999999"
		otherBy = "arn:aws:iam::999999999999:user/boss"
		root    = "arn:aws:iam::123456789012:root"
		role    = "arn:aws:iam::123456789012:role/dev"
		session = "arn:aws:sts::123456789012:assumed-role/dev/s1"
	)
	_, k, _ := startLinks(t)
	d := k.Directory()
	if _, err := d.CreateAccount(t.Context(), Account{ID: other}); err != nil {
		t.Fatal(err)
	}
	for _, principal := range []string{oidcUser, role} {
		if err := d.CreateAdmin(t.Context(), account, policy.Principal(principal)); err != nil {
			t.Fatal(err)
		}
	}
	create := func(by, of, principal string) string {
		t.Helper()
		code, err := d.CreateLinkCode(store.WithActor(t.Context(), store.Actor{Principal: by}),
			LinkCode{Account: cluster.Account(of), Principal: policy.Principal(principal), Admin: true,
				Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return linkCodeID(code)
	}
	byUser := []string{create(otherBy, account, oidcUser), create(oidcUser, account, root),
		create(oidcUser, other, otherBy)}
	byRole := []string{create(session, account, root), create(session, other, otherBy)}
	others := []string{create(root, account, root), create(otherBy, other, otherBy),
		create(oidcUser+"/x", account, root)}
	check := func(after string, want ...string) {
		t.Helper()
		var got []string
		for _, of := range []string{account, other} {
			codes, _, err := d.AccountLinkCodes(t.Context(), cluster.Account(of), Window{Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range codes {
				got = append(got, c.ID)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("after %s the codes %v are left, want %v", after, got, want)
		}
	}
	check("the creation", slices.Concat(byUser, byRole, others)...)
	if err := d.DeleteAdmin(t.Context(), account, oidcUser); err != nil {
		t.Fatal(err)
	}
	check("the user's dismissal", slices.Concat(byRole, others)...)
	if err := d.DeleteAdmin(t.Context(), account, role); err != nil {
		t.Fatal(err)
	}
	check("the role's dismissal", others...)
}

// The number of codes of an account is bounded. Expired ones do not count, and are removed after a day.
func TestLinkCodesAreBounded(t *testing.T) {
	s, k, _ := startLinks(t)
	for range maxLinkCodes {
		newCode(t, k, LinkCode{Principal: oidcUser})
	}
	c := LinkCode{Account: account, Principal: oidcUser, Expires: time.Now().Add(time.Hour)}
	if _, err := k.Directory().CreateLinkCode(t.Context(), c); !errors.Is(err, ErrTooMany) {
		t.Errorf("one code more: %v", err)
	}
	err := s.Tx(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), `update document set spec = jsonb_set(spec, '{expiresAt}', '"2026-01-01T00:00:00Z"')
			where kind = 'LinkCode'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Directory().CreateLinkCode(t.Context(), c); err != nil {
		t.Errorf("after the others have expired: %v", err)
	}
	if err := k.deleteExpired(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(t.Context(), store.Query{Kind: KindLinkCode, Limit: 500})
	if err != nil || len(page.Documents) != 1 {
		t.Errorf("%d codes are left, %v", len(page.Documents), err)
	}
}
